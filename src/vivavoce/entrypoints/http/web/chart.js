/** Small line charts of the last minutes. */

import { element } from "./dom.js";

const WIDTH = 240;
const HEIGHT = 56;

/** A tile: a title, a figure, a line of detail and a chart of one or two lines. */
export class Tile {
  /**
   * @param {string} title
   * @param {string} id
   */
  constructor(title, id) {
    this.figure = element("p", { className: "figure" }, "–");
    this.detail = element("p", { className: "hint" });
    this.chart = svg("svg", {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "chart", "aria-hidden": "true",
    });
    this.root = element("section", { className: "card tile", "data-tile": id, "aria-label": title },
      element("h2", {}, title), this.figure, this.detail, this.chart);
  }

  /**
   * @param {string} figure
   * @param {string} detail
   * @param {number[][]} lines Each from old to new; NaN leaves a gap.
   * @param {number} [ceiling] The chart's top; without one, or above it, the greatest value.
   */
  show(figure, detail, lines, ceiling = 0) {
    this.figure.textContent = figure;
    this.detail.textContent = detail;
    const most = Math.max(...[...lines.flat(), ceiling].filter(Number.isFinite), 0) || 1;
    this.chart.replaceChildren(
      ...lines.flatMap((values, place) => strokes(values, most).map((points) =>
        svg("polyline", { points, class: place === 0 ? "line" : "line second" }))));
  }
}

/**
 * @param {number[]} values
 * @param {number} most
 * @returns {string[]} The points of each unbroken stretch.
 */
function strokes(values, most) {
  /** @type {string[][]} */
  const all = [[]];
  values.forEach((value, place) => {
    if (!Number.isFinite(value)) {
      all.push([]);
      return;
    }
    const x = values.length > 1 ? (place / (values.length - 1)) * WIDTH : WIDTH;
    all[all.length - 1].push(`${x.toFixed(1)},${(HEIGHT - 2 - (value / most) * (HEIGHT - 6)).toFixed(1)}`);
  });
  return all.filter((points) => points.length > 1).map((points) => points.join(" "));
}

/**
 * @param {string} tag
 * @param {Record<string, string>} attributes
 * @returns {SVGElement}
 */
function svg(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
