/** Plays a book while it is made: fetches its WAV file in stretches, and frees the samples that were heard. */

import { ApiError, ask, isAbort } from "./api.js";
import { Take } from "./pcm.js";
import { Player } from "./player.js";

/** Bytes of one stretch: about 20 s. */
const STRETCH = 1 << 20;

/** The next stretch is fetched when less than this many seconds are left. */
const AHEAD_S = 30;

/** Milliseconds until the next check whether to fetch more audio. */
const LOOK_MS = 1_000;

/** Bytes at the file's start that hold its whole header. */
const HEAD = 1_024;

export class BookPlayer {
  /**
   * @param {string} address Of the WAV file.
   * @param {() => void} changed
   * @param {(error: unknown) => void} failed
   */
  constructor(address, changed, failed) {
    this.address = address;
    this.changed = changed;
    this.failed = failed;
    /** Whether all of the book's audio is made. */
    this.complete = false;
    /** @type {Player | null} */
    this.player = null;
    /** @type {AbortController | null} */
    this.fetching = null;
  }

  /** @returns {import("./player.js").PlayState} */
  get state() {
    return this.player?.state ?? "stopped";
  }

  get sounds() {
    return this.state === "waiting" || this.state === "playing";
  }

  /** @param {number} seconds Where in the book to begin. */
  async play(seconds) {
    this.stop();
    // `stop` aborts this controller. The player is made later: the file's head tells the sample rate.
    const fetching = this.fetching = new AbortController();
    try {
      const head = await this.bytes(0, HEAD, fetching.signal);
      const view = new DataView(head.buffer);
      const take = new Take(view.getUint32(24, true));
      const data = new TextDecoder("latin1").decode(head).indexOf("data", 36) + 8;
      if (fetching.signal.aborted) return;
      this.player = new Player(take, () => 0.5, this.changed);
      await this.feed(this.player, data + 2 * Math.round(seconds * take.rate), fetching.signal);
    } catch (error) {
      if (!isAbort(error)) this.failed(error);
      if (!isAbort(error)) this.stop();
    }
  }

  /**
   * @param {Player} player
   * @param {number} at The first byte.
   * @param {AbortSignal} signal
   */
  async feed(player, at, signal) {
    const { take } = player;
    for (;;) {
      const last = this.complete;
      while (!signal.aborted && (take.length - player.at) / take.rate > AHEAD_S) await pause();
      if (signal.aborted) return;
      const bytes = await this.bytes(at, STRETCH, signal);
      at += bytes.length;
      if (bytes.length) take.add(bytes);
      // Free the samples that were heard, because a book takes too much memory.
      take.starts.forEach((start, place) => {
        if (start + take.pieces[place].length < player.at) take.pieces[place] = new Int16Array(0);
      });
      if (bytes.length === 0 && last) return player.end();
      player.arrived();
      if (bytes.length === 0) await pause();
    }
  }

  /**
   * @param {number} at
   * @param {number} count
   * @param {AbortSignal} signal
   * @returns {Promise<Uint8Array<ArrayBuffer>>} Empty if no more audio is made yet.
   */
  async bytes(at, count, signal) {
    try {
      const answer = await ask(this.address, { headers: { range: `bytes=${at}-${at + count - 1}` }, signal });
      return new Uint8Array(await answer.arrayBuffer());
    } catch (error) {
      if (error instanceof ApiError && error.status === 416) return new Uint8Array(0);
      throw error;
    }
  }

  stop() {
    this.fetching?.abort();
    this.player?.free();
    this.player = null;
    this.changed();
  }
}

function pause() {
  return new Promise((resolve) => setTimeout(resolve, LOOK_MS));
}
