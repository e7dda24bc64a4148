/** Plays a take while it arrives: schedules buffers one after the other on the audio clock, without a gap. */

import { toFloat } from "./pcm.js";

/** @typedef {"waiting" | "playing" | "paused" | "finished" | "stopped"} PlayState */

/** Seconds between scheduling and sounding: enough for the audio thread to see the first buffer in time. */
const LEAD_S = 0.05;

/** Seconds to gather after the first gap before playback continues; each further gap doubles them, up to the most. */
const REFILL_S = 0.3;
const MOST_REFILL_S = 2.4;

/** Seconds of audio that are scheduled ahead. */
const HORIZON_S = 20;

const VOLUME = "vivavoce.volume";

/** The loudness of all players, from 0 to 1. */
export function volume() {
  return Number(localStorage.getItem(VOLUME) ?? 1);
}

/** Plays one utterance. Make it in the handler of a click or key press, without which browsers allow no sound. */
export class Player {
  /**
   * @param {import("./pcm.js").Take} take May grow: call `arrived` after each growth, and `end` after the last one.
   * @param {() => number} needed Returns the seconds to gather before playback starts; NaN: not known yet.
   * @param {() => void} changed Called whenever `state` or `gaps` may have changed.
   */
  constructor(take, needed, changed) {
    this.take = take;
    this.needed = needed;
    this.changed = changed;
    /** Number of times that playback had to wait for audio after its start. */
    this.gaps = 0;
    this.context = makeContext(take.rate);
    this.gain = new GainNode(this.context, { gain: volume() });
    this.gain.connect(this.context.destination);
    /** The first sample that is not scheduled. */
    this.at = 0;
    /** @type {Set<AudioBufferSourceNode>} Sources that are scheduled and not played to the end. */
    this.sources = new Set();
    /** @type {{clock: number, place: number}[]} Begins of playback without a gap, in s of the clock and of the audio. */
    this.stretches = [];
    /** The position in the audio, in seconds, from which playback begins or continues. */
    this.from = 0;
    this.freeFrom = 0;
    this.refillS = 0;
    this.complete = false;
    this.held = false;
    /** Whether to play without waiting for enough audio, as the listener wants. */
    this.hurried = false;
    /** @type {"finished" | "stopped" | null} */
    this.over = null;
    this.context.addEventListener("statechange", () => {
      // A phone call or the system has interrupted the sound; it continues when the listener presses play.
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

  /** Seconds of audio that are still missing before playback starts; NaN: not known yet. */
  get lackS() {
    return Math.max(this.needed(), this.refillS) - (this.take.length - this.at) / this.take.rate;
  }

  /** The take has grown. */
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

  /** Continue, or play from the beginning if playback was over. */
  play() {
    if (this.over) {
      this.seek(0);
      return;
    }
    this.held = false;
    this.context.resume();
    this.changed();
  }

  /** Play the audio that is there, although a gap will follow. */
  hurry() {
    this.hurried = true;
    this.arrived();
  }

  /** @param {number} seconds Position from which to play, in the audio that has arrived. */
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
    if (!this.sources.delete(source)) return; // `drop` has stopped it
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

  /** Stop and remove all scheduled sources. */
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

  /** Stop, and close the audio context: browsers allow a page only a few contexts at a time. */
  free() {
    this.stop();
    this.context.close();
  }
}

/**
 * Make a context with the audio's rate. Otherwise each buffer would be resampled alone, and the joins would click.
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
