/** Marks the part of a text area that is spoken, by a copy of the text behind it. */

import { element } from "./dom.js";

/** A text area lies over `mirror`, which has the same size, font and padding. */
export class Highlight {
  /**
   * @param {HTMLTextAreaElement} area
   * @param {HTMLElement} mirror
   */
  constructor(area, mirror) {
    this.area = area;
    this.mirror = mirror;
    /** @type {import("./speech.js").SegmentEvent | undefined} */
    this.shown = undefined;
    area.addEventListener("scroll", () => (mirror.scrollTop = area.scrollTop));
    // The places of a text that is edited are no longer those that were spoken.
    area.addEventListener("input", () => this.show("", undefined));
  }

  /**
   * @param {string} text The spoken one.
   * @param {{start: number, end: number} | undefined} segment Of the text, in code points: a word or a segment.
   */
  show(text, segment) {
    if (segment === this.shown || (segment && text !== this.area.value)) return;
    this.shown = segment;
    if (!segment) {
      this.mirror.replaceChildren();
      return;
    }
    const [start, end] = [codeUnits(text, segment.start), codeUnits(text, segment.end)];
    const mark = element("mark", {}, text.slice(start, end).trimEnd());
    // A text area shows an empty last line; a block of text does so only if something stands there.
    this.mirror.replaceChildren(text.slice(0, start), mark, text.slice(end), "\u200b");
    this.follow(mark);
  }

  /** @param {HTMLElement} mark */
  follow(mark) {
    const top = mark.offsetTop;
    const { scrollTop, clientHeight } = this.area;
    if (top < scrollTop || top + mark.offsetHeight > scrollTop + clientHeight)
      this.area.scrollTop = Math.max(0, top - clientHeight / 4);
    this.mirror.scrollTop = this.area.scrollTop;
  }
}

/**
 * Where a character, counted in code points as the server counts, stands in a string of UTF-16.
 * @param {string} text
 * @param {number} codePoints
 * @returns {number}
 */
function codeUnits(text, codePoints) {
  let units = 0;
  for (let left = codePoints; left > 0 && units < text.length; left--)
    units += /** @type {number} */ (text.codePointAt(units)) > 0xffff ? 2 : 1;
  return units;
}

/**
 * Characters of a text as the server counts them.
 * @param {string} text
 * @returns {number}
 */
export function characters(text) {
  let count = 0;
  for (const _ of text) count += 1;
  return count;
}
