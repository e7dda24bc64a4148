/** Samples as the server sends them: int16, little endian, one channel. */

const SCALE = 32768;

/** Collects the samples of one stream. */
export class Take {
  /** @param {number} rate Samples per second. */
  constructor(rate) {
    this.rate = rate;
    this.length = 0;
    /** @type {Int16Array<ArrayBuffer>[]} */
    this.pieces = [];
    /** @type {number[]} The position of each piece's first sample. */
    this.starts = [];
    /** @type {number | null} The first byte of a sample that a piece of the stream cut in two. */
    this.half = null;
  }

  /** Seconds so far. */
  get seconds() {
    return this.length / this.rate;
  }

  /**
   * Add bytes, and return the whole samples that they complete.
   * @param {Uint8Array} bytes
   * @returns {Int16Array<ArrayBuffer>}
   */
  add(bytes) {
    const whole = new Uint8Array(bytes.length + (this.half === null ? 0 : 1));
    if (this.half !== null) whole[0] = this.half;
    whole.set(bytes, whole.length - bytes.length);
    this.half = whole.length % 2 ? whole[whole.length - 1] : null;
    // All machines with browsers are little-endian, as are the server's samples.
    const samples = new Int16Array(whole.buffer, 0, whole.length >> 1);
    if (samples.length) {
      this.pieces.push(samples);
      this.starts.push(this.length);
    }
    this.length += samples.length;
    return samples;
  }

  /**
   * @param {number} at Position of a sample, less than the length.
   * @returns {Int16Array<ArrayBuffer>} The samples from there to the end of the piece.
   */
  from(at) {
    const place = this.starts.findLastIndex((start) => start <= at);
    return this.pieces[place].subarray(at - this.starts[place]);
  }

  /**
   * @param {number} start
   * @param {number} end
   * @returns {Blob} These samples, as the server sends them.
   */
  cut(start, end) {
    return new Blob(this.pieces).slice(2 * start, 2 * end);
  }

  /** @returns {Blob} All samples as a WAV file. */
  wav() {
    return wav(this.pieces, this.rate);
  }
}

/**
 * Read a take from a WAV file that `wav` has made.
 * @param {Blob} file
 * @returns {Promise<Take>}
 */
export async function takeOf(file) {
  const bytes = await file.arrayBuffer();
  const take = new Take(new DataView(bytes).getUint32(24, true));
  take.add(new Uint8Array(bytes, 44));
  return take;
}

/**
 * @param {Int16Array<ArrayBuffer>} samples
 * @returns {Float32Array<ArrayBuffer>} In [−1, 1).
 */
export function toFloat(samples) {
  return Float32Array.from(samples, (sample) => sample / SCALE);
}

/**
 * @param {Float32Array} samples
 * @returns {Int16Array<ArrayBuffer>}
 */
export function toInt16(samples) {
  return Int16Array.from(samples, (sample) => Math.max(-SCALE, Math.min(SCALE - 1, Math.round(sample * SCALE))));
}

/**
 * Make a WAV file with one channel of 16-bit samples.
 * @param {Int16Array<ArrayBuffer>[]} pieces
 * @param {number} rate
 * @returns {Blob}
 */
export function wav(pieces, rate) {
  const size = 2 * pieces.reduce((sum, piece) => sum + piece.length, 0);
  const head = new DataView(new ArrayBuffer(44));
  const word = (/** @type {number} */ at, /** @type {string} */ letters) =>
    [...letters].forEach((letter, place) => head.setUint8(at + place, letter.charCodeAt(0)));
  word(0, "RIFF");
  head.setUint32(4, 36 + size, true);
  word(8, "WAVEfmt ");
  head.setUint32(16, 16, true);
  head.setUint16(20, 1, true); // PCM
  head.setUint16(22, 1, true);
  head.setUint32(24, rate, true);
  head.setUint32(28, 2 * rate, true);
  head.setUint16(32, 2, true);
  head.setUint16(34, 16, true);
  word(36, "data");
  head.setUint32(40, size, true);
  return new Blob([head, ...pieces], { type: "audio/wav" });
}
