/** Subtitles of a take, in SubRip or WebVTT, with the times of its segments. */

/** Most columns of a subtitle, in two lines; a Chinese or Japanese character takes two columns. */
const MOST_COLUMNS = 84;

/** @typedef {{from: number, to: number, text: string}} Cue Seconds, and words. */

/**
 * @param {string} text
 * @param {import("./speech.js").SegmentEvent[]} segments
 * @param {number} seconds Length of the whole take.
 * @returns {Cue[]} A segment with several cues divides its time among them by their letters.
 */
function cues(text, segments, seconds) {
  const letters = Array.from(text);
  return segments.flatMap(({ start, end, at }, place) => {
    const until = segments[place + 1]?.at ?? seconds;
    const parts = parted(letters.slice(start, end).join("").trim().replace(/\s+/g, " "));
    const whole = parts.reduce((sum, part) => sum + part.length, 0);
    let from = at;
    return parts.map((part) => {
      const to = from + ((until - at) * part.length) / whole;
      const cue = { from, to, text: part };
      from = to;
      return cue;
    });
  });
}

/**
 * @param {string} text
 * @returns {string[]} Parts that fit, cut between words, or between characters of scripts without spaces.
 */
function parted(text) {
  const parts = [];
  let part = "";
  for (const atom of text.match(/[\u3040-\u30ff\u3400-\u9fff][\u3000-\u303f\uff00-\uff65]*|[^\s\u3040-\u30ff\u3400-\u9fff]+\s*/g) ?? []) {
    if (part && columns(part + atom.trimEnd()) > MOST_COLUMNS) {
      parts.push(part.trim());
      part = "";
    }
    part += atom;
  }
  return part ? [...parts, part.trim()] : parts;
}

/** @param {string} text */
function columns(text) {
  return text.replace(/[\u3000-\u9fff\uff00-\uff65]/g, "  ").length;
}

/**
 * @param {"srt" | "vtt"} format
 * @param {string} text
 * @param {import("./speech.js").SegmentEvent[]} segments
 * @param {number} seconds
 * @returns {Blob}
 */
export function subtitles(format, text, segments, seconds) {
  const isVtt = format === "vtt";
  const time = (/** @type {number} */ at) => {
    const stamp = new Date(Math.round(at * 1000)).toISOString().slice(11, 23);
    return isVtt ? stamp : stamp.replace(".", ",");
  };
  const escaped = (/** @type {string} */ words) =>
    isVtt ? words.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;") : words;
  const blocks = cues(text, segments, seconds).map(({ from, to, text: words }, place) =>
    `${isVtt ? "" : `${place + 1}\n`}${time(from)} --> ${time(to)}\n${escaped(words)}\n`);
  return new Blob([[...(isVtt ? ["WEBVTT\n"] : []), ...blocks].join("\n")], { type: isVtt ? "text/vtt" : "text/plain" });
}
