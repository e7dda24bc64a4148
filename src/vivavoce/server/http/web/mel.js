/** A mel-like spectrogram, made while the samples arrive. */

const WINDOW = 1024;
const HOP = 256;
/** Bands of a frame, from low to high. */
export const BANDS = 64;

/** Levels, in decibels of full scale, that get the weakest and the strongest colour. */
const FLOOR_DB = -85;
const TOP_DB = -25;

/** One frame: each band's strength from 0 to 255, and the greatest amplitude of its hop from 0 to 1. */
/** @typedef {{bands: Uint8Array, peak: number}} Frame */

/** Cuts a stream of samples into frames of 1,024 samples, one frame every 256 samples. */
export class Mel {
  /** @param {number} rate Samples per second. */
  constructor(rate) {
    this.filled = 0;
    this.buffer = new Float32Array(WINDOW);
    this.window = Float32Array.from({ length: WINDOW }, (_, n) => 0.5 - 0.5 * Math.cos((2 * Math.PI * n) / WINDOW));
    this.edges = melEdges(rate);
    this.fourier = new Fourier(WINDOW);
  }

  /**
   * @param {Int16Array} samples
   * @param {(frame: Frame) => void} take
   */
  push(samples, take) {
    for (let at = 0; at < samples.length; ) {
      const count = Math.min(WINDOW - this.filled, samples.length - at);
      for (let n = 0; n < count; n++) this.buffer[this.filled + n] = samples[at + n] / 32768;
      this.filled += count;
      at += count;
      if (this.filled < WINDOW) return;
      take(this.frame());
      this.buffer.copyWithin(0, HOP);
      this.filled = WINDOW - HOP;
    }
  }

  /** @returns {Frame} */
  frame() {
    const power = this.fourier.power(this.buffer, this.window);
    const bands = new Uint8Array(BANDS);
    for (let band = 0; band < BANDS; band++) {
      let most = 1e-12;
      // The strongest bin of a band, not its mean: thin harmonics stay visible in wide bands.
      for (let bin = this.edges[band]; bin < Math.max(this.edges[band + 1], this.edges[band] + 1); bin++)
        most = Math.max(most, power[bin]);
      const decibels = 10 * Math.log10(most);
      bands[band] = Math.max(0, Math.min(255, (255 * (decibels - FLOOR_DB)) / (TOP_DB - FLOOR_DB)));
    }
    let peak = 0;
    for (let n = WINDOW - HOP; n < WINDOW; n++) peak = Math.max(peak, Math.abs(this.buffer[n]));
    return { bands, peak };
  }
}

/**
 * Find the first bin of each band; all bands have the same width on the mel scale, from 60 Hz to half the rate.
 * @param {number} rate
 * @returns {number[]} One number more than bands: the last one ends the last band.
 */
function melEdges(rate) {
  const mel = (/** @type {number} */ hertz) => 2595 * Math.log10(1 + hertz / 700);
  const [low, high] = [mel(60), mel(rate / 2)];
  return Array.from({ length: BANDS + 1 }, (_, place) => {
    const hertz = 700 * (10 ** ((low + ((high - low) * place) / BANDS) / 2595) - 1);
    return Math.min(WINDOW / 2, Math.round((hertz * WINDOW) / rate));
  });
}

/** The fast Fourier transform of one size, a power of two (Cooley and Tukey, in place). */
class Fourier {
  /** @param {number} size */
  constructor(size) {
    this.size = size;
    this.real = new Float32Array(size);
    this.imaginary = new Float32Array(size);
    this.cosine = Float32Array.from({ length: size / 2 }, (_, n) => Math.cos((2 * Math.PI * n) / size));
    this.sine = Float32Array.from({ length: size / 2 }, (_, n) => -Math.sin((2 * Math.PI * n) / size));
    const bits = Math.log2(size);
    this.reversed = Uint16Array.from({ length: size }, (_, n) => {
      let turned = 0;
      for (let bit = 0; bit < bits; bit++) turned |= ((n >> bit) & 1) << (bits - 1 - bit);
      return turned;
    });
  }

  /**
   * Power of each bin, 1 for a sine of full scale.
   * @param {Float32Array} samples
   * @param {Float32Array} window
   * @returns {Float32Array} Bins 0 … size/2.
   */
  power(samples, window) {
    const { size, real, imaginary } = this;
    for (let n = 0; n < size; n++) real[this.reversed[n]] = samples[n] * window[n];
    imaginary.fill(0);
    for (let half = 1; half < size; half *= 2) this.combine(half);
    const power = new Float32Array(size / 2 + 1);
    const scale = 4 / size;
    for (let bin = 0; bin < power.length; bin++) power[bin] = scale * scale * (real[bin] ** 2 + imaginary[bin] ** 2);
    return power;
  }

  /** @param {number} half Size of the transforms so far; pairs of them are combined into transforms twice as large. */
  combine(half) {
    const { size, real, imaginary, cosine, sine } = this;
    const step = size / (2 * half);
    for (let start = 0; start < size; start += 2 * half) {
      for (let k = 0; k < half; k++) {
        const [a, b] = [start + k, start + k + half];
        const [c, s] = [cosine[k * step], sine[k * step]];
        const re = real[b] * c - imaginary[b] * s;
        const im = real[b] * s + imaginary[b] * c;
        real[b] = real[a] - re;
        imaginary[b] = imaginary[a] - im;
        real[a] += re;
        imaginary[a] += im;
      }
    }
  }
}
