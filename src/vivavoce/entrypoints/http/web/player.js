/** Plays samples while they arrive: buffers scheduled one after the other on the audio clock, without a gap. */

import { toFloat } from "./pcm.js";

/** @typedef {"waiting" | "playing" | "paused" | "finished" | "stopped"} PlayState */

/** Seconds between scheduling and sounding: enough for the audio thread to see the first buffer in time. */
const LEAD_S = 0.05;

/** After a gap this much is gathered before it goes on, and twice as much after each further one. */
const REFILL_S = 0.3;
const MOST_REFILL_S = 2.4;

/** Buffers are scheduled this far ahead; what a fast server sends beyond it waits as compact integers. */
const HORIZON_S = 20;

/** One utterance. Make it inside of a click or key press: browsers let no page sound before one. */
export class Player {
  /**
   * @param {number} rate Samples per second.
   * @param {() => void} changed Called whenever `state` or `gaps` may have changed.
   */
  constructor(rate, changed) {
    this.rate = rate;
    this.changed = changed;
    /** Times that the listener had to wait in the middle. */
    this.gaps = 0;
    this.context = makeContext(rate);
    /** @type {Int16Array<ArrayBuffer>[]} Arrived, not scheduled. */
    this.queue = [];
    this.queued = 0;
    /** @type {Set<AudioBufferSourceNode>} Scheduled, not played to the end. */
    this.sources = new Set();
    /** @type {{clock: number, place: number}[]} Where unbroken stretches begin: on the clock, and in the audio. */
    this.stretches = [];
    this.scheduledS = 0;
    this.freeFrom = 0;
    this.neededS = 0;
    this.complete = false;
    this.held = false;
    /** @type {"finished" | "stopped" | null} */
    this.over = null;
    this.context.addEventListener("statechange", () => {
      // A phone call or the system's own pause takes the sound away; the listener gives it back.
      if (/** @type {string} */ (this.context.state) === "interrupted") this.held = true;
      this.changed();
    });
  }

  /** @returns {PlayState} */
  get state() {
    if (this.over) return this.over;
    if (this.held) return "paused";
    return this.sources.size > 0 ? "playing" : "waiting";
  }

  /** Seconds of the audio that were heard; gaps do not count. */
  get heardS() {
    const now = this.context.currentTime - (this.context.outputLatency || 0);
    const stretch = this.stretches.findLast((each) => each.clock <= now) ?? this.stretches[0];
    if (!stretch || this.over === "finished") return this.over ? this.scheduledS : 0;
    return Math.max(0, Math.min(stretch.place + now - stretch.clock, this.scheduledS));
  }

  /** @param {Int16Array<ArrayBuffer>} samples */
  push(samples) {
    if (this.over || samples.length === 0) return;
    this.queue.push(samples);
    this.queued += samples.length;
    this.schedule();
    this.changed();
  }

  /** All of the audio has arrived. */
  end() {
    this.complete = true;
    this.schedule();
    this.finishIfHeard();
    this.changed();
  }

  pause() {
    if (this.over) return;
    this.held = true;
    this.context.suspend();
    this.changed();
  }

  resume() {
    if (this.over) return;
    this.held = false;
    this.context.resume();
    this.changed();
  }

  stop() {
    this.close("stopped");
  }

  schedule() {
    const ready = this.complete || this.sources.size > 0 || this.queued / this.rate >= this.neededS;
    while (ready && this.queue.length > 0 && this.freeFrom - this.context.currentTime < HORIZON_S) {
      const samples = /** @type {Int16Array<ArrayBuffer>} */ (this.queue.shift());
      this.queued -= samples.length;
      this.place(toFloat(samples));
    }
  }

  /** @param {Float32Array<ArrayBuffer>} samples */
  place(samples) {
    if (this.stretches.length === 0 || this.freeFrom < this.context.currentTime) {
      this.freeFrom = this.context.currentTime + LEAD_S;
      this.stretches.push({ clock: this.freeFrom, place: this.scheduledS });
    }
    const buffer = this.context.createBuffer(1, samples.length, this.rate);
    buffer.copyToChannel(samples, 0);
    const source = new AudioBufferSourceNode(this.context, { buffer });
    source.connect(this.context.destination);
    source.start(this.freeFrom);
    this.sources.add(source);
    source.addEventListener("ended", () => this.played(source));
    this.scheduledS += buffer.duration;
    this.freeFrom += buffer.duration;
  }

  /** @param {AudioBufferSourceNode} source */
  played(source) {
    this.sources.delete(source);
    if (this.over) return;
    this.schedule();
    if (this.sources.size === 0 && !this.complete) {
      this.gaps += 1;
      this.neededS = Math.min(this.neededS * 2 || REFILL_S, MOST_REFILL_S);
    }
    this.finishIfHeard();
    this.changed();
  }

  finishIfHeard() {
    if (this.complete && this.queue.length === 0 && this.sources.size === 0) this.close("finished");
  }

  /** @param {"finished" | "stopped"} how */
  close(how) {
    if (this.over) return;
    this.over = how;
    this.queue = [];
    this.sources.clear();
    // Browsers allow a page only some contexts at a time.
    this.context.close();
    this.changed();
  }
}

/**
 * A context of the audio's own rate resamples once, behind all buffers; per buffer, the joins would click.
 * @param {number} rate
 * @returns {AudioContext}
 */
function makeContext(rate) {
  try {
    return new AudioContext({ sampleRate: rate });
  } catch {
    return new AudioContext();
  }
}
