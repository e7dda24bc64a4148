/** The picture of an utterance on a canvas: loudness above, spectrogram below, a line at the playback position. */

import { BANDS, Mel } from "./mel.js";

/** Columns of the picture. When all columns are used, neighbours are joined, so that audio of any length fits. */
const COLUMNS = 640;
/** Share of the height that the loudness takes. */
const LOUDNESS = 0.3;

/** Draws one utterance after the other on its canvas. */
export class Picture {
  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.mirror = Object.assign(document.createElement("canvas"), { width: COLUMNS, height: BANDS });
    this.bands = new Uint8Array(COLUMNS * BANDS);
    this.peaks = new Float32Array(COLUMNS);
    this.colours = new Uint32Array(256);
    this.accent = "";
    this.asked = 0;
    this.mel = new Mel(24_000);
    this.columns = 0;
    this.framesPerColumn = 1;
    this.framesInLast = 0;
    this.stretched = false;
    /** The playback position, as a share of the audio that has arrived. */
    this.heard = 0;
    /** Whether `paint` must draw the small image again. */
    this.stale = true;
    new ResizeObserver(() => this.resize()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    this.recolour();
  }

  /**
   * Begin an empty picture.
   * @param {number} rate Samples per second.
   */
  reset(rate) {
    this.mel = new Mel(rate);
    this.bands.fill(0);
    this.peaks.fill(0);
    this.columns = 0;
    this.framesPerColumn = 1;
    this.framesInLast = 0;
    this.stretched = false;
    this.heard = 0;
    this.stale = true;
    this.ask();
  }

  /** @param {Int16Array} samples */
  push(samples) {
    this.mel.push(samples, (frame) => this.add(frame));
    this.ask();
  }

  /** All audio has arrived, so the picture fills the whole width. */
  end() {
    this.stretched = true;
    this.ask();
  }

  /** @param {number} share The playback position as a share of the audio that has arrived, from 0 to 1. */
  playhead(share) {
    if (share === this.heard) return;
    this.heard = share;
    this.ask();
  }

  /**
   * @param {number} x Pixels of the page from the left edge.
   * @returns {number} The position in the audio there, as a share of the audio that has arrived.
   */
  shareAt(x) {
    const filled = this.stretched ? 1 : this.columns / COLUMNS;
    return Math.min(1, x / this.canvas.clientWidth / filled);
  }

  /** @param {import("./mel.js").Frame} frame */
  add({ bands, peak }) {
    if (this.columns === 0 || this.framesInLast === this.framesPerColumn) {
      if (this.columns === COLUMNS) this.halve();
      this.columns += 1;
      this.framesInLast = 0;
    }
    const at = this.columns - 1;
    for (let band = 0; band < BANDS; band++) {
      const place = at * BANDS + band;
      this.bands[place] = Math.max(this.bands[place], bands[band]);
    }
    this.peaks[at] = Math.max(this.peaks[at], peak);
    this.framesInLast += 1;
    this.stale = true;
  }

  halve() {
    this.columns = COLUMNS / 2;
    this.framesPerColumn *= 2;
    for (let at = 0; at < COLUMNS; at++) {
      const kept = at < this.columns;
      this.peaks[at] = kept ? Math.max(this.peaks[2 * at], this.peaks[2 * at + 1]) : 0;
      for (let band = 0; band < BANDS; band++) {
        const from = 2 * at * BANDS + band;
        this.bands[at * BANDS + band] = kept ? Math.max(this.bands[from], this.bands[from + BANDS]) : 0;
      }
    }
  }

  resize() {
    const { width, height } = this.canvas.getBoundingClientRect();
    this.canvas.width = Math.max(1, Math.round(width * devicePixelRatio));
    this.canvas.height = Math.max(1, Math.round(height * devicePixelRatio));
    this.ask();
  }

  recolour() {
    const style = getComputedStyle(this.canvas);
    this.accent = style.getPropertyValue("--accent");
    const stops = ["--sunk", "--low", "--mid", "--high"].map((name) => rgb(style.getPropertyValue(name)));
    for (let value = 0; value < 256; value++) {
      const place = (value / 255) * (stops.length - 1);
      const first = Math.min(stops.length - 2, Math.floor(place));
      const mix = (/** @type {number} */ part) =>
        Math.round(stops[first][part] + (place - first) * (stops[first + 1][part] - stops[first][part]));
      this.colours[value] = (255 << 24) | (mix(2) << 16) | (mix(1) << 8) | mix(0);
    }
    this.stale = true;
    this.ask();
  }

  /** Draw before the screen's next frame, once for any number of calls. */
  ask() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => {
      this.asked = 0;
      this.draw();
    });
  }

  draw() {
    const pen = this.canvas.getContext("2d");
    if (!pen) return;
    const { width, height } = this.canvas;
    const middle = Math.round(height * LOUDNESS);
    pen.clearRect(0, 0, width, height);
    if (!this.columns) return;
    if (this.stale) this.paint();
    const filled = this.stretched ? width : (width * this.columns) / COLUMNS;
    pen.drawImage(this.mirror, 0, 0, this.columns, BANDS, 0, middle, filled, height - middle);
    this.drawLoudness(pen, filled, middle);
    pen.fillStyle = this.accent;
    const line = Math.max(2, Math.round(devicePixelRatio * 1.5));
    if (this.heard > 0 && this.heard < 1) pen.fillRect(this.heard * filled, 0, line, height);
  }

  /**
   * @param {CanvasRenderingContext2D} pen
   * @param {number} filled
   * @param {number} height
   */
  drawLoudness(pen, filled, height) {
    const half = height / 2;
    const step = filled / this.columns;
    const reach = (/** @type {number} */ at) => Math.max(0.5, this.peaks[at] * (half - 2));
    pen.beginPath();
    pen.moveTo(0, half);
    for (let at = 0; at < this.columns; at++) pen.lineTo((at + 0.5) * step, half - reach(at));
    for (let at = this.columns - 1; at >= 0; at--) pen.lineTo((at + 0.5) * step, half + reach(at));
    pen.fillStyle = this.accent;
    pen.globalAlpha = 0.75;
    pen.fill();
    pen.globalAlpha = 1;
  }

  /** Draw the bands into the small image, one pixel each, the lowest band at the bottom. */
  paint() {
    const image = new ImageData(COLUMNS, BANDS);
    const pixels = new Uint32Array(image.data.buffer);
    for (let at = 0; at < this.columns; at++)
      for (let band = 0; band < BANDS; band++)
        pixels[(BANDS - 1 - band) * COLUMNS + at] = this.colours[this.bands[at * BANDS + band]];
    this.mirror.getContext("2d")?.putImageData(image, 0, 0);
    this.stale = false;
  }
}

/**
 * @param {string} hex Like #1f6f78.
 * @returns {number[]}
 */
function rgb(hex) {
  const number = parseInt(hex.trim().slice(1), 16);
  return [number >> 16, (number >> 8) & 255, number & 255];
}
