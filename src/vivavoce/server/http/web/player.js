/** Plays a take while it arrives: buffers scheduled one after the other on the audio clock, without a gap. */

import { toFloat } from "./pcm.js";

/** @typedef {"waiting" | "playing" | "paused" | "finished" | "stopped"} PlayState */

/** Seconds between scheduling and sounding: enough for the audio thread to see the first buffer in time. */
const LEAD_S = 0.05;

/** After a gap at least this much is gathered before it goes on, and twice as much after each further one. */
const REFILL_S = 0.3;
const MOST_REFILL_S = 2.4;

/** Buffers are scheduled this far ahead. */
const HORIZON_S = 20;

const VOLUME = "vivavoce.volume";

/** The loudness of all players, from 0 to 1. */
export function volume() {
  return Number(localStorage.getItem(VOLUME) ?? 1);
}

/** One utterance. Make it inside of a click or key press: browsers let no page sound before one. */
export class Player {
  /**
   * @param {import("./pcm.js").Take} take It may still grow; `arrived` and `end` say so.
   * @param {() => number} needed Seconds that must be gathered before it plays; NaN: nobody knows yet.
   * @param {() => void} changed Called whenever `state` or `gaps` may have changed.
   */
  constructor(take, needed, changed) {
    this.take = take;
    this.needed = needed;
    this.changed = changed;
    /** Times that the listener had to wait in the middle. */
    this.gaps = 0;
    this.context = makeContext(take.rate);
    this.gain = new GainNode(this.context, { gain: volume() });
    this.gain.connect(this.context.destination);
    /** The first sample that is not scheduled. */
    this.at = 0;
    /** @type {Set<AudioBufferSourceNode>} Scheduled, not played to the end. */
    this.sources = new Set();
    /** @type {{clock: number, place: number}[]} Where unbroken stretches begin: on the clock, and in the audio. */
    this.stretches = [];
    /** Seconds in the audio from where it plays. */
    this.from = 0;
    this.freeFrom = 0;
    this.refillS = 0;
    this.complete = false;
    this.held = false;
    /** The listener does not want to wait. */
    this.hurried = false;
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
    const scheduledS = this.at / this.take.rate;
    if (this.over) return this.over === "finished" ? scheduledS : this.from;
    const now = this.context.currentTime - (this.context.outputLatency || 0);
    const stretch = this.stretches.findLast((each) => each.clock <= now);
    return stretch ? Math.min(stretch.place + now - stretch.clock, scheduledS) : this.from;
  }

  /** Seconds that are still to be gathered before it plays; NaN: nobody knows. */
  get lackS() {
    return Math.max(this.needed(), this.refillS) - (this.take.length - this.at) / this.take.rate;
  }

  /** There is more in the take. */
  arrived() {
    if (this.over) return;
    this.schedule();
    this.changed();
  }

  /** All of the audio has arrived. */
  end() {
    this.complete = true;
    this.arrived();
    this.finishIfHeard();
  }

  pause() {
    if (this.over) return;
    this.held = true;
    this.context.suspend();
    this.changed();
  }

  /** Go on, or begin anew where it was over. */
  play() {
    if (this.over) {
      this.seek(0);
      return;
    }
    this.held = false;
    this.context.resume();
    this.changed();
  }

  /** Play what there is, though it will not last. */
  hurry() {
    this.hurried = true;
    this.arrived();
  }

  /** @param {number} seconds Where to go on, in what has arrived. */
  seek(seconds) {
    this.drop();
    this.from = Math.max(0, Math.min(seconds, this.take.seconds));
    this.at = Math.round(this.from * this.take.rate);
    if (this.over) {
      this.held = false;
      this.over = null;
      this.context.resume();
    }
    this.schedule();
    this.finishIfHeard();
    this.changed();
  }

  stop() {
    this.close("stopped");
  }

  /** @param {number} loudness From 0 to 1. */
  setVolume(loudness) {
    localStorage.setItem(VOLUME, String(loudness));
    this.gain.gain.value = loudness;
  }

  schedule() {
    const ready = this.complete || this.hurried || this.sources.size > 0 || this.lackS <= 0;
    while (ready && this.at < this.take.length && this.freeFrom - this.context.currentTime < HORIZON_S)
      this.place(toFloat(this.take.from(this.at)));
  }

  /** @param {Float32Array<ArrayBuffer>} samples */
  place(samples) {
    if (this.stretches.length === 0 || this.freeFrom < this.context.currentTime) {
      this.freeFrom = this.context.currentTime + LEAD_S;
      this.stretches.push({ clock: this.freeFrom, place: this.at / this.take.rate });
    }
    const buffer = this.context.createBuffer(1, samples.length, this.take.rate);
    buffer.copyToChannel(samples, 0);
    const source = new AudioBufferSourceNode(this.context, { buffer });
    source.connect(this.gain);
    source.start(this.freeFrom);
    this.sources.add(source);
    source.addEventListener("ended", () => this.played(source));
    this.at += samples.length;
    this.freeFrom += buffer.duration;
  }

  /** @param {AudioBufferSourceNode} source */
  played(source) {
    if (!this.sources.delete(source)) return; // it was dropped
    this.schedule();
    if (this.sources.size === 0 && !this.complete) {
      this.gaps += 1;
      this.hurried = false;
      this.from = this.at / this.take.rate;
      this.refillS = Math.min(this.refillS * 2 || REFILL_S, MOST_REFILL_S);
    }
    this.finishIfHeard();
    this.changed();
  }

  finishIfHeard() {
    if (this.complete && this.at >= this.take.length && this.sources.size === 0) this.close("finished");
  }

  /** Forget what is scheduled. */
  drop() {
    const sources = [...this.sources];
    this.sources.clear();
    for (const source of sources) source.stop();
    this.stretches = [];
    this.freeFrom = 0;
  }

  /** @param {"finished" | "stopped"} how */
  close(how) {
    if (this.over) return;
    this.drop();
    this.from = 0;
    this.over = how;
    this.context.suspend();
    this.changed();
  }

  /** Free the browser's sound: it allows a page only some contexts at a time. */
  free() {
    this.stop();
    this.context.close();
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
