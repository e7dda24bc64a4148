/** One utterance: its request, the audio that arrives, its playback and its end. */

import { ApiError, ask, explain, isAbort } from "./api.js";
import { t } from "./i18n.js";
import { Pace } from "./pace.js";
import { Take, takeOf } from "./pcm.js";
import { Player } from "./player.js";
import { speak } from "./speech.js";

/** @typedef {"idle" | "waiting" | "playing" | "paused" | "finished" | "failed"} State */
/** @typedef {{name: string, rate: number}} Model */
/** @typedef {"finished" | "length" | "incomplete" | "cancelled" | "cut" | "error"} Ending */
/** Reasons of an end after which the speech is no failure. */
const KEPT = ["length", "incomplete", "cancelled"];

/** Milliseconds for which a busy server is asked again. */
const MOST_WAIT_MS = 180_000;

/** Seconds of the first waits after a speech was given up: the server's own advice still counts that speech. */
const SOON_S = [0.3, 0.7, 1.5];

/** Milliseconds between two questions whether the server has ended a speech that was given up, and their limit. */
const FREED_EVERY_MS = 100;
const MOST_FREEING_MS = 5000;

/** @type {Utterance | null} The utterance that asks the server or plays; a page has one at a time. */
let current = null;

/** @type {Promise<boolean>} Resolves when the server has ended all given-up speech; true if there was any. */
let freed = Promise.resolve(false);

/** Make it in the handler of a click or key press, as `Player` requires; it stops the utterance before it. */
export class Utterance {
  /**
   * @param {import("./speech.js").Wish} wish
   * @param {Model} model
   * @param {() => void} changed Called whenever its state may have changed.
   */
  constructor(wish, model, changed) {
    this.wish = wish;
    this.model = model;
    this.changed = changed;
    this.take = new Take(model.rate);
    this.pace = new Pace(wish.text, wish.speed);
    this.player = new Player(this.take, () => this.pace.neededS, changed);
    /** @type {import("./speech.js").SegmentEvent[]} In the order of the text. */
    this.segments = [];
    /** @type {import("./speech.js").WordsEvent["words"]} In the order of the text; none if the model does not tell. */
    this.words = [];
    this.abort = new AbortController();
    /** The id of the request. */
    this.id = "";
    /** Time of `performance.now` at which a busy server is asked again; NaN: it is not busy. */
    this.retryAt = NaN;
    /** @type {Ending | null} How the server's answer ended; null until it ends. */
    this.ending = null;
    /** What went wrong and what to do, "" if nothing did. */
    this.trouble = "";
    this.claim();
  }

  /** Stop the other utterance, so that only this one plays. */
  claim() {
    if (current !== this) current?.stop();
    current = this;
  }

  /** @returns {State} */
  get state() {
    const played = this.player.state;
    if (played !== "finished" && played !== "stopped") return played;
    if (this.ending === "cut" || this.ending === "error") return "failed";
    return played === "finished" ? "finished" : "idle";
  }

  /** Whether playback is over, finished or stopped. */
  get silent() {
    return this.player.over !== null;
  }

  /** Milliseconds from asking to the first audio. */
  get firstMs() {
    return this.pace.firstS * 1000;
  }

  /** Seconds of work for a second of audio; NaN before there is any. */
  get realTimeFactor() {
    return this.pace.lastS / this.take.seconds;
  }

  /** Length in seconds; an estimate until the server's answer ends. */
  get totalS() {
    return this.ending === null ? this.pace.expectedS : this.take.seconds;
  }

  /** Share of the arrived audio that was heard. */
  get heardShare() {
    return this.take.length ? Math.min(1, this.player.heardS / this.take.seconds) : 0;
  }

  /** The word that is heard now, or else the segment. */
  get segment() {
    const heard = this.player.heardS;
    if (this.silent) return undefined;
    const segment = this.segments.findLast(({ at }) => at <= heard);
    const word = this.words.findLast(({ at }) => at <= heard);
    return word && segment && word.start >= segment.start ? word : segment;
  }

  /**
   * Ask for the speech and play it while it arrives; return when no more audio will come.
   * @param {(samples: Int16Array) => void} arrived
   */
  async run(arrived) {
    try {
      const soon = (await freed) ? [...SOON_S] : [];
      this.abort.signal.throwIfAborted();
      await this.askUntilTaken(soon, arrived);
    } catch (error) {
      this.fail(error);
    }
    this.pace.remember();
    // Audio that came before a failure is played to its end; without audio, playback stops.
    if (this.take.length || this.ending === "finished") this.player.end();
    else this.player.stop();
    this.changed();
  }

  /**
   * Ask the server; if it is busy, ask again after the time that it advises.
   * @param {number[]} soon Seconds of the first waits, in place of the server's advice.
   * @param {(samples: Int16Array) => void} arrived
   */
  async askUntilTaken(soon, arrived) {
    const until = performance.now() + MOST_WAIT_MS;
    for (;;) {
      try {
        this.id = `page-${crypto.getRandomValues(new Uint32Array(3)).join("-")}`;
        this.pace.began = performance.now();
        return await this.hear(arrived);
      } catch (error) {
        if (!(error instanceof ApiError && error.isBusy) || this.take.length) throw error;
        const seconds = soon.shift() ?? error.retryAfter;
        if (performance.now() + seconds * 1000 > until) throw error;
        await this.wait(seconds * 1000);
      }
    }
  }

  /** @param {(samples: Int16Array) => void} arrived */
  async hear(arrived) {
    for await (const event of speak(this.wish, this.model, this.id, this.abort.signal)) {
      if (event.kind === "segment") {
        this.segments.push(event);
        this.pace.segment(event);
      } else if (event.kind === "words") this.words.push(...event.words);
      else if (event.kind === "verdict") this.judge(event.verdict);
      else {
        const samples = this.take.add(event.bytes);
        this.pace.piece(samples.length / this.take.rate);
        this.player.arrived();
        arrived(samples);
      }
    }
  }

  /** @param {number} milliseconds */
  async wait(milliseconds) {
    this.retryAt = performance.now() + milliseconds;
    this.changed();
    await new Promise((resolve) => {
      setTimeout(resolve, milliseconds);
      this.abort.signal.addEventListener("abort", resolve);
    });
    this.retryAt = NaN;
    this.changed();
    this.abort.signal.throwIfAborted();
  }

  /** @param {import("./speech.js").Verdict} verdict */
  judge({ finish_reason: reason, error, request_id: requestId = "" }) {
    this.ending = reason === "stop" ? "finished" : KEPT.includes(reason) ? /** @type {Ending} */ (reason) : "error";
    if (reason === "length")
      this.trouble = t("A sentence was cut at the longest that the model speaks: split it, or throw the dice.");
    if (reason === "incomplete") this.trouble = t("Some words seem to be missing: listen again, or throw the dice.");
    if (reason === "cancelled") this.trouble = t("The server ended the speech early; what arrived is kept.");
    if (this.ending === "error") {
      const said = error?.message ?? t("The speech failed in the middle.");
      this.trouble = explain(new ApiError(said, { code: error?.code, status: 500, requestId }));
    }
  }

  /** @param {unknown} error */
  fail(error) {
    if (isAbort(error) || this.abort.signal.aborted) {
      this.ending = "cancelled";
      return;
    }
    this.ending = error instanceof ApiError && error.code === "cut" ? "cut" : "error";
    this.trouble = explain(error);
  }

  /** Stop playback, and the server's work. */
  stop() {
    if (this.ending === null && !this.abort.signal.aborted) {
      const before = freed;
      if (this.id) freed = Promise.all([before, untilFreed(this.id)]).then(() => true);
      this.abort.abort();
    }
    this.player.stop();
  }

  /** Continue after a pause, or play again. Call this in the handler of a click or key press. */
  play() {
    this.claim();
    this.player.play();
  }

  /** @param {number} seconds */
  seek(seconds) {
    this.claim();
    this.player.seek(seconds);
  }

  /**
   * Take over the audio of an entry of the history.
   * @param {import("./history.js").Entry} entry
   */
  async restore({ audio, segments = [] }) {
    this.take = this.player.take = await takeOf(audio);
    this.segments = segments;
    this.ending = "finished";
    this.player.end();
    return this.take.from(0);
  }
}

/** @param {string} id The id of a request that was given up. */
async function untilFreed(id) {
  for (let left = MOST_FREEING_MS; left > 0; left -= FREED_EVERY_MS) {
    await new Promise((resolve) => setTimeout(resolve, FREED_EVERY_MS));
    try {
      const { status } = await (await ask(`v1/audio/requests/${id}`, { silent: true })).json();
      if (status !== "running") return;
    } catch {
      return; // the server does not know the request
    }
  }
}
