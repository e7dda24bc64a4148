/** Marks the spoken part of a text area in a copy of its text, which lies behind it. */

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
    // After an edit, the positions in the spoken text are no longer right.
    area.addEventListener("input", () => this.show("", undefined));
  }

  /**
   * @param {string} text The text that is spoken.
   * @param {{start: number, end: number} | undefined} segment The word or segment to mark, in code points, or none.
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
    // A text area shows an empty last line; the mirror shows it only if it has a character.
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
 * @param {string} text
 * @param {number} codePoints A position in the text as the server counts it.
 * @returns {number} This position in JavaScript's UTF-16 string.
 */
function codeUnits(text, codePoints) {
  let units = 0;
  for (let left = codePoints; left > 0 && units < text.length; left--)
    units += /** @type {number} */ (text.codePointAt(units)) > 0xffff ? 2 : 1;
  return units;
}

/**
 * @param {string} text
 * @returns {number} Number of characters (code points), as the server counts them.
 */
export function characters(text) {
  let count = 0;
  for (const _ of text) count += 1;
  return count;
}
