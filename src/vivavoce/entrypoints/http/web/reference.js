/** A reference recording: taken with the microphone, or chosen as a file. */

import { byId, element, write } from "./dom.js";
import { toInt16, wav } from "./pcm.js";

/** The server takes no longer ones. */
const LONGEST_S = 30;

/** The recorder gives what it has this often, so that the bar moves. */
const STEP_MS = 250;

/** What it fills is the form's fieldset #reference; one to a page. */
export class Reference {
  constructor() {
    this.button = element("button", { type: "button" }, "Record");
    this.file = element("input", { type: "file", accept: "audio/*" });
    this.length = element("progress", { max: LONGEST_S, hidden: true, "aria-label": "Seconds recorded" });
    this.preview = element("audio", { controls: true, hidden: true });
    this.words = element("textarea", { rows: 2, id: "transcript", "aria-describedby": "transcript-hint" });
    this.note = element("p", { className: "hint", role: "status" });
    byId("reference", HTMLFieldSetElement).append(
      element("legend", {}, "Recording"),
      element("p", { className: "hint" }, "3 to 10 seconds of clear speech, 30 at most."),
      this.button,
      element("label", { className: "pick" }, "or a file ", this.file),
      this.note,
      this.length,
      this.preview,
      element("div", { className: "field" }, element("label", { htmlFor: "transcript" }, "What it says"), this.words,
        element("p", { className: "hint", id: "transcript-hint" },
          "Word for word; left empty, only the voice's sound is taken.")));
    /** @type {Blob | null} */
    this.recording = null;
    /** @type {MediaRecorder | null} */
    this.recorder = null;
    this.button.addEventListener("click", () => (this.recorder ? this.recorder.stop() : this.record()));
    this.file.addEventListener("change", () => this.take(this.file.files?.[0] ?? null));
    if (!navigator.mediaDevices || typeof MediaRecorder === "undefined") {
      this.button.disabled = true;
      write(this.note, "Recording needs a page from https or from this very computer; choose a file instead.");
    }
  }

  get transcript() {
    return this.words.value.trim();
  }

  /** Empty all of it. */
  clear() {
    this.file.value = "";
    this.words.value = "";
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
      write(this.note, "The microphone was not allowed, or there is none; choose a file instead.");
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
      this.length.hidden = true;
      for (const track of microphone.getTracks()) track.stop();
      this.recorder = null;
      this.button.textContent = "Record again";
      await this.keep(new Blob(parts, { type: recorder.mimeType }));
    });
    this.file.value = "";
    this.take(null);
    this.recorder = recorder;
    this.button.textContent = "Stop recording";
    write(this.note, `Recording; it ends by itself after ${LONGEST_S} s.`);
    this.length.value = 0;
    this.length.hidden = false;
    recorder.start(STEP_MS);
  }

  /** @param {Blob} recorded */
  async keep(recorded) {
    try {
      const { file, seconds } = await asWav(recorded);
      this.take(file);
      write(this.note, `Recorded ${seconds.toFixed(1)} s.`);
    } catch {
      this.take(null);
      write(this.note, "Nothing was recorded; try again.");
    }
  }
}

/**
 * Each browser records in a format of its own; every server reads WAV.
 * @param {Blob} recorded
 * @returns {Promise<{file: Blob, seconds: number}>}
 */
async function asWav(recorded) {
  // An offline context decodes without taking one of the page's few sounding ones.
  const context = new OfflineAudioContext(1, 1, 48_000);
  const audio = await context.decodeAudioData(await recorded.arrayBuffer());
  // A recorder's last packet may end a little after the limit.
  const samples = audio.getChannelData(0).subarray(0, LONGEST_S * audio.sampleRate);
  return { file: wav([toInt16(samples)], audio.sampleRate), seconds: samples.length / audio.sampleRate };
}
