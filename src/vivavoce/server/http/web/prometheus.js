/** A reader of Prometheus' text format, for the status page. */

/** @typedef {{labels: Record<string, string>, value: number}} Series */
/** Cumulative buckets, by growing bounds: each counts all values up to its bound, the last one all values. */
/** @typedef {{bounds: number[], counts: number[]}} Histogram */

/** The metrics of one scrape. A metric that the server does not send is NaN, null or empty, never an error. */
export class Metrics {
  /** @param {string} text */
  constructor(text) {
    /** @type {Map<string, Series[]>} */
    this.series = new Map();
    for (const line of text.split("\n")) this.read(line);
  }

  /** @param {string} line */
  read(line) {
    const found = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (!found) return; // comments, blank lines, and what a later format may add
    const [, name, written = "", value] = found;
    /** @type {Record<string, string>} */
    const labels = {};
    for (const [, label, text] of written.matchAll(/(\w+)="((?:\\.|[^"\\])*)"/g))
      labels[label] = text.replace(/\\(.)/g, (_, letter) => (letter === "n" ? "\n" : letter));
    const all = this.series.get(name) ?? [];
    all.push({ labels, value: number(value) });
    this.series.set(name, all);
  }

  /**
   * Return a metric, summed over its labels.
   * @param {string} name
   * @returns {number} NaN if there is none.
   */
  sum(name) {
    const all = this.series.get(name);
    return all ? all.reduce((sum, { value }) => sum + value, 0) : NaN;
  }

  /**
   * Return a metric for each value of one label, summed over the other labels.
   * @param {string} name
   * @param {string} label
   * @returns {Map<string, number>}
   */
  by(name, label) {
    /** @type {Map<string, number>} */
    const sums = new Map();
    for (const { labels, value } of this.series.get(name) ?? [])
      sums.set(labels[label] ?? "", (sums.get(labels[label] ?? "") ?? 0) + value);
    return sums;
  }

  /**
   * Return the value of one label of an info metric.
   * @param {string} name
   * @param {string} label
   * @returns {string}
   */
  label(name, label) {
    return this.series.get(name)?.[0]?.labels[label] ?? "";
  }

  /**
   * @param {string} name
   * @returns {Histogram | null}
   */
  histogram(name) {
    const buckets = [...this.by(`${name}_bucket`, "le")].map(([le, count]) => ({ bound: number(le), count }));
    if (buckets.length === 0) return null;
    buckets.sort((one, other) => one.bound - other.bound);
    return { bounds: buckets.map(({ bound }) => bound), counts: buckets.map(({ count }) => count) };
  }
}

/**
 * Return what was counted between two scrapes.
 * @param {Histogram | null} now
 * @param {Histogram | null} before
 * @returns {Histogram | null}
 */
export function since(now, before) {
  if (!now || !before || now.bounds.length !== before.bounds.length) return now;
  return { bounds: now.bounds, counts: now.counts.map((count, place) => count - before.counts[place]) };
}

/**
 * Return the value below which a share of all values lies; within a bucket they count as evenly spread, as in PromQL.
 * @param {Histogram | null} histogram
 * @param {number} share
 * @returns {number} NaN if nothing was counted.
 */
export function quantile(histogram, share) {
  const total = histogram?.counts.at(-1) ?? 0;
  if (!histogram || !(total > 0)) return NaN;
  const { bounds, counts } = histogram;
  const place = counts.findIndex((count) => count >= share * total);
  if (!Number.isFinite(bounds[place])) return bounds[place - 1] ?? NaN;
  const [low, below] = place > 0 ? [bounds[place - 1], counts[place - 1]] : [0, 0];
  return low + ((bounds[place] - low) * (share * total - below)) / (counts[place] - below);
}

/** @param {string} text */
function number(text) {
  return text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text);
}
