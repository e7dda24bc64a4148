/** One utterance: what is asked for, what arrives of it, how it is played, and how it ended. */

import { ApiError, explain, isAbort } from "./api.js";
import { Take } from "./pcm.js";
import { Player } from "./player.js";
import { speak } from "./speech.js";

/** @typedef {"idle" | "waiting" | "playing" | "paused" | "finished" | "failed"} State */
/** @typedef {{name: string, rate: number}} Model */
/** @typedef {"finished" | "length" | "cancelled" | "cut" | "error"} Ending */

/** Make it inside of a click or key press, as its player. */
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
    this.player = new Player(model.rate, changed);
    /** @type {import("./speech.js").SegmentEvent[]} In the order of the text. */
    this.segments = [];
    this.abort = new AbortController();
    this.began = performance.now();
    /** Milliseconds from asking to the first audio. */
    this.firstMs = NaN;
    /** Milliseconds from asking to the audio that came last. */
    this.lastMs = NaN;
    /** @type {Ending | null} How the server's answer ended; null while it goes on. */
    this.ending = null;
    /** What went wrong and what to do, "" if nothing did. */
    this.trouble = "";
  }

  /** @returns {State} */
  get state() {
    const played = this.player.state;
    if (played !== "finished" && played !== "stopped") return played;
    if (this.ending === "cut" || this.ending === "error") return "failed";
    return played === "finished" ? "finished" : "idle";
  }

  /** It neither sounds nor is to sound. */
  get silent() {
    return this.player.over !== null;
  }

  /** Seconds of work for a second of audio; NaN before there is any. */
  get realTimeFactor() {
    return this.lastMs / 1000 / this.take.seconds;
  }

  /** Share of what has arrived that was heard. */
  get heardShare() {
    return this.take.length ? Math.min(1, this.player.heardS / this.take.seconds) : 0;
  }

  /** The segment that is heard now. */
  get segment() {
    const heard = this.player.heardS;
    return this.silent ? undefined : this.segments.findLast((segment) => segment.at <= heard);
  }

  /**
   * Ask for it and play it as it arrives; returns when all has arrived or nothing more will.
   * @param {(samples: Int16Array) => void} arrived
   */
  async run(arrived) {
    try {
      for await (const event of speak(this.wish, this.model.name, this.abort.signal)) {
        if (event.kind === "segment") this.segments.push(event);
        else if (event.kind === "verdict") this.judge(event.verdict);
        else this.hear(this.take.add(event.bytes), arrived);
      }
    } catch (error) {
      this.fail(error);
    }
    // What came before a failure is played to its end; where nothing came, there is nothing to wait for.
    if (this.take.length || this.ending === "finished") this.player.end();
    else this.player.stop();
    this.changed();
  }

  /**
   * @param {Int16Array<ArrayBuffer>} samples
   * @param {(samples: Int16Array) => void} arrived
   */
  hear(samples, arrived) {
    this.lastMs = performance.now() - this.began;
    if (Number.isNaN(this.firstMs)) this.firstMs = this.lastMs;
    this.player.push(samples);
    arrived(samples);
  }

  /** @param {import("./speech.js").Verdict} verdict */
  judge({ finish_reason: reason, error, request_id: requestId = "" }) {
    this.ending = reason === "stop" ? "finished" : reason === "length" || reason === "cancelled" ? reason : "error";
    if (reason === "length")
      this.trouble = "A sentence was cut at the longest that the model speaks; split it, or change the seed.";
    if (reason === "cancelled") this.trouble = "The server ended the speech early; what arrived is kept.";
    if (this.ending === "error") {
      const said = error?.message ?? "The speech failed in the middle.";
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

  /** Stop the sound, and the server's work too. */
  stop() {
    this.abort.abort();
    this.player.stop();
  }

  /** Play what has arrived once more; inside of a click or key press. */
  replay() {
    this.player.stop();
    this.player = new Player(this.model.rate, this.changed);
    for (const piece of this.take.pieces) this.player.push(piece);
    this.player.end();
  }
}
