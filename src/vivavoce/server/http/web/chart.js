/** Line charts of the last minutes, with a scale, and the values at the pointer. */

import { element } from "./dom.js";
import { t } from "./i18n.js";

const WIDTH = 300;
const HEIGHT = 72;

/** A line: its name, and its values from old to new; NaN leaves a gap. */
/** @typedef {{name: string, values: number[]}} Line */

/** A tile: a title, a figure, a line of detail and a chart of one or two lines. */
export class Tile {
  /**
   * @param {string} title
   * @param {string} id
   * @param {(value: number) => string} written Writes a value of the chart as text.
   */
  constructor(title, id, written) {
    this.written = written;
    this.figure = element("p", { className: "figure" }, "–");
    this.detail = element("p", { className: "hint" });
    this.top = element("span", { className: "top-value" });
    this.began = element("span");
    this.told = element("p", { className: "told hint" });
    this.chart = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "chart" });
    this.pointer = svg("line", { class: "pointer", y1: "0", y2: String(HEIGHT) });
    const area = element("div", { className: "area", "aria-hidden": "true" }, this.chart, this.top,
      element("span", { className: "zero" }, "0"));
    this.root = element("section", { className: "card tile", "data-tile": id, "aria-label": t(title) },
      element("h2", {}, t(title)), this.figure, this.detail,
      this.told, area,
      element("div", { className: "axis" }, this.began, element("span", {}, t("now"))));
    /** @type {Line[]} */
    this.lines = [];
    /** @type {number[]} The age of each value, in seconds. */
    this.ages = [];
    this.spanS = 1;
    /** @type {number | null} The pointer's place as a share of the width; null: it is outside. */
    this.at = null;
    area.addEventListener("pointermove", (event) => this.point(event.offsetX / area.clientWidth));
    area.addEventListener("pointerdown", (event) => this.point(event.offsetX / area.clientWidth));
    area.addEventListener("pointerleave", () => this.point(null));
  }

  /**
   * @param {string} figure
   * @param {string} detail
   * @param {Line[]} lines
   * @param {number[]} ages The age of each value, in seconds; a shorter line lacks the oldest values.
   * @param {number} spanS Seconds that the chart's width shows.
   * @param {number} [ceiling] Value at the chart's top; a greater value of a line raises the top.
   */
  show(figure, detail, lines, ages, spanS, ceiling = 0) {
    this.figure.textContent = figure;
    this.detail.textContent = detail;
    [this.lines, this.ages, this.spanS] = [lines, ages, spanS];
    const most = Math.max(...[...lines.flatMap(({ values }) => values), ceiling].filter(Number.isFinite), 0);
    this.top.textContent = this.written(most || 1);
    this.began.textContent = t("{minutes} min ago", { minutes: Math.round(spanS / 60) });
    this.chart.replaceChildren(this.pointer,
      ...lines.flatMap(({ values }, place) => this.strokes(values, most || 1).map((points) =>
        svg("polyline", { points, class: place === 0 ? "line" : "line second" }))));
    this.point(this.at);
  }

  /** @param {number | null} share The pointer's place as a share of the width; null: it is outside. */
  point(share) {
    this.at = share;
    const wanted = share === null ? NaN : (1 - share) * this.spanS;
    const place = this.ages.reduce((best, age, each) =>
      Math.abs(age - wanted) < Math.abs(this.ages[best] - wanted) ? each : best, this.ages.length - 1);
    const values = this.lines.map(({ name, values: all }) =>
      ({ name, value: all[place - (this.ages.length - all.length)] })).filter(({ value }) => Number.isFinite(value));
    const isShown = share !== null && values.length > 0 && Math.abs(this.ages[place] - wanted) < this.spanS / 20;
    this.pointer.classList.toggle("shown", isShown);
    this.told.textContent = isShown ? [t("{seconds} s ago", { seconds: Math.round(this.ages[place]) }),
      ...values.map(({ name, value }) => [name, this.written(value)].filter(Boolean).join(" "))].join(" · ") : "";
    if (isShown) for (const end of ["x1", "x2"]) this.pointer.setAttribute(end, String(this.x(this.ages[place])));
  }

  /** @param {number} age */
  x(age) {
    return (1 - age / this.spanS) * WIDTH;
  }

  /**
   * @param {number[]} values
   * @param {number} most
   * @returns {string[]} The points of each part of the line that has no gap.
   */
  strokes(values, most) {
    /** @type {string[][]} */
    const all = [[]];
    const ages = this.ages.slice(this.ages.length - values.length);
    values.forEach((value, place) => {
      if (!Number.isFinite(value)) {
        all.push([]);
        return;
      }
      const y = HEIGHT - 2 - (value / most) * (HEIGHT - 4);
      all[all.length - 1].push(`${this.x(ages[place]).toFixed(1)},${y.toFixed(1)}`);
    });
    return all.filter((points) => points.length > 1).map((points) => points.join(" "));
  }
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
