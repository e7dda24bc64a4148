/** A reference recording: taken with the microphone, or chosen as a file, with its owner's consent. */

import { byId, element, write } from "./dom.js";
import { t } from "./i18n.js";
import { toInt16, wav } from "./pcm.js";

/** Seconds of the longest recording that the server accepts. */
const LONGEST_S = 30;

/** Milliseconds between two pieces from the recorder; each piece moves the bar. */
const STEP_MS = 250;

/** A recording whose peak is below this share of full scale was made too far from the microphone. */
const QUIET = 0.05;

const SENTENCE = "The rain had stopped, and the whole street smelled of fresh bread. I walked slowly, because I wanted " +
  "the morning to last.";

/** Fills the fieldset #reference of the page's form; a page has one of them at most. */
export class Reference {
  constructor() {
    this.button = element("button", { type: "button" }, t("Record"));
    this.file = element("input", { type: "file", accept: "audio/*" });
    this.length = element("progress", { max: LONGEST_S, hidden: true, "aria-label": t("Seconds recorded") });
    this.level = element("meter", { min: 0, max: 1, low: QUIET, high: 0.95, optimum: 0.5, hidden: true,
      "aria-label": t("Loudness of the microphone") });
    this.preview = element("audio", { controls: true, hidden: true });
    this.words = element("textarea", { rows: 2, id: "transcript", "aria-describedby": "transcript-hint" });
    this.note = element("p", { className: "hint", role: "status" });
    this.consent = element("input", { type: "checkbox" });
    const read = element("button", { type: "button", className: "chip" }, t("I read this sentence"));
    read.addEventListener("click", () => (this.words.value = t(SENTENCE)));
    byId("reference", HTMLFieldSetElement).append(
      element("legend", {}, t("Recording")),
      element("p", { className: "hint" }, t("3 to 10 seconds of clear speech, 30 at most. You may read this:")),
      element("blockquote", {}, t(SENTENCE)),
      element("div", { className: "row wrap" }, this.button,
        element("label", { className: "pick" }, t("or a file"), " ", this.file)),
      this.level,
      this.length,
      this.note,
      this.preview,
      element("div", { className: "field" },
        element("div", { className: "row" }, element("label", { htmlFor: "transcript" }, t("What it says")), read),
        this.words,
        element("p", { className: "hint", id: "transcript-hint" },
          t("Word for word: the voice gets closer. Left empty, only its sound is taken."))),
      element("label", { className: "tick" }, this.consent, " ",
        t("This is my own voice, or its owner has agreed to this.")));
    /** @type {Blob | null} */
    this.recording = null;
    /** @type {MediaRecorder | null} */
    this.recorder = null;
    this.loudest = 0;
    this.button.addEventListener("click", () => (this.recorder ? this.recorder.stop() : this.record()));
    this.file.addEventListener("change", () => this.take(this.file.files?.[0] ?? null));
    if (!navigator.mediaDevices || typeof MediaRecorder === "undefined") {
      this.button.disabled = true;
      write(this.note, t("Recording needs a page from https or from this very computer; choose a file instead."));
    }
  }

  get transcript() {
    return this.words.value.trim();
  }

  /** @returns {{message: string, where: HTMLElement} | null} What is missing, and the element to focus, or null. */
  complaint() {
    const where = this.button.disabled ? this.file : this.button;
    if (!this.recording) return { message: t("Record the voice or choose a file first."), where };
    if (this.consent.checked) return null;
    return { message: t("Tick that it is your own voice, or that its owner has agreed."), where: this.consent };
  }

  /** Remove the recording, its transcript and the consent. */
  clear() {
    this.file.value = "";
    this.words.value = "";
    this.consent.checked = false;
    this.take(null);
  }

  /** @param {Blob | null} recording */
  take(recording) {
    this.recording = recording;
    URL.revokeObjectURL(this.preview.src);
    this.preview.hidden = recording === null;
    if (recording) this.preview.src = URL.createObjectURL(recording);
    else this.preview.removeAttribute("src");
    if (!this.button.disabled) write(this.note, "");
  }

  async record() {
    /** @type {MediaStream} */
    let microphone;
    try {
      microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
    } catch {
      write(this.note, t("The microphone was not allowed, or there is none; choose a file instead."));
      return;
    }
    /** @type {Blob[]} */
    const parts = [];
    const recorder = new MediaRecorder(microphone);
    const limit = setTimeout(() => recorder.stop(), LONGEST_S * 1000);
    const began = performance.now();
    recorder.addEventListener("dataavailable", (event) => {
      parts.push(event.data);
      if (event.data.size > 0) this.length.value = (performance.now() - began) / 1000;
    });
    recorder.addEventListener("stop", async () => {
      clearTimeout(limit);
      this.length.hidden = this.level.hidden = true;
      for (const track of microphone.getTracks()) track.stop();
      this.recorder = null;
      this.button.textContent = t("Record again");
      await this.keep(new Blob(parts, { type: recorder.mimeType }));
    });
    this.file.value = "";
    this.take(null);
    this.recorder = recorder;
    this.button.textContent = t("Stop recording");
    write(this.note, t("Recording; it ends by itself after {seconds} s.", { seconds: LONGEST_S }));
    this.length.value = this.loudest = 0;
    this.length.hidden = this.level.hidden = false;
    recorder.start(STEP_MS);
    this.measure(microphone, recorder);
  }

  /**
   * Show the loudness while it records.
   * @param {MediaStream} microphone
   * @param {MediaRecorder} recorder
   */
  measure(microphone, recorder) {
    const context = new AudioContext();
    const analyser = new AnalyserNode(context, { fftSize: 2048 });
    context.createMediaStreamSource(microphone).connect(analyser);
    const wave = new Float32Array(analyser.fftSize);
    const look = () => {
      if (this.recorder !== recorder) {
        context.close();
        return;
      }
      analyser.getFloatTimeDomainData(wave);
      const peak = wave.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0);
      this.loudest = Math.max(this.loudest, peak);
      this.level.value = peak;
      requestAnimationFrame(look);
    };
    look();
  }

  /** @param {Blob} recorded */
  async keep(recorded) {
    try {
      const { file, seconds } = await asWav(recorded);
      this.take(file);
      const told = t("Recorded {seconds} s.", { seconds: seconds.toFixed(1) });
      write(this.note, this.loudest < QUIET ? `${told} ${t("It is very quiet: come closer and record again.")}` : told);
    } catch {
      this.take(null);
      write(this.note, t("Nothing was recorded; try again."));
    }
  }
}

/**
 * Convert a recording to WAV: browsers record in different formats, and every server reads WAV.
 * @param {Blob} recorded
 * @returns {Promise<{file: Blob, seconds: number}>}
 */
async function asWav(recorded) {
  // An offline context decodes without using one of the few audio contexts that a page may have.
  const context = new OfflineAudioContext(1, 1, 48_000);
  const audio = await context.decodeAudioData(await recorded.arrayBuffer());
  // A recorder's last packet may end a little after the limit.
  const samples = audio.getChannelData(0).subarray(0, LONGEST_S * audio.sampleRate);
  return { file: wav([toInt16(samples)], audio.sampleRate), seconds: samples.length / audio.sampleRate };
}
