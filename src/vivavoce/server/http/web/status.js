/** The page of a server's metrics, which it reads every two seconds while it is visible. */

import { ask, explain } from "./api.js";
import { Tile } from "./chart.js";
import { byId, duration, tell, write } from "./dom.js";
import { header } from "./header.js";
import { locale, t } from "./i18n.js";
import { Metrics, quantile, since } from "./prometheus.js";

header();

const PERIOD_MS = 2000;
/** Seconds that a chart shows. */
const SPAN_S = 300;
/** Number of samples that are kept: 5 minutes of them. */
const KEPT = 150;

/** The values that are kept of one scrape; NaN: the server did not send the value. */
/** @typedef {ReturnType<typeof sampleOf>} Sample */

const board = byId("tiles", HTMLElement);

/** @type {Sample[]} From old to new. */
let samples = [];
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
/** Whether a request was sent: only the first one asks the user for a key, not one every 2 seconds. */
let asked = false;

const tiles = {
  streams: new Tile("Speaking now", "streams", whole),
  first: new Tile("Time to the first sound", "first", time),
  speed: new Tile("Sound made per second", "speed", (value) => t("{n} s", { n: decimal(value) })),
  requests: new Tile("Requests since the start", "requests", (value) => t("{n} a second", { n: decimal(value) })),
  underruns: new Tile("Pieces that came too late", "underruns", (value) => t("{n} a second", { n: decimal(value) })),
  memory: new Tile("Memory", "memory", gib),
};

/** @param {Metrics} metrics */
function sampleOf(metrics) {
  const made = metrics.sum("vivavoce_engine_audio_seconds_total");
  const heard = metrics.sum("vivavoce_audio_seconds_total");
  return {
    at: performance.now() / 1000,
    up: metrics.sum("vivavoce_engine_up"),
    engines: {
      up: metrics.by("vivavoce_engine_up", "engine"),
      streams: metrics.by("vivavoce_engine_streams", "engine"),
      capacity: metrics.by("vivavoce_engine_capacity", "engine"),
    },
    draining: metrics.sum("vivavoce_draining"),
    model: metrics.label("vivavoce_build_info", "model"),
    version: metrics.label("vivavoce_build_info", "version"),
    streams: metrics.sum("vivavoce_streams_active"),
    waiting: metrics.sum("vivavoce_requests_waiting"),
    first: metrics.histogram("vivavoce_first_audio_seconds"),
    // Behind a Triton server, the audio that the engine made is unknown; the audio that was sent is always known.
    madeS: Number.isNaN(made) ? heard : made,
    heardS: heard,
    wallS: metrics.sum("vivavoce_request_seconds_sum"),
    outcomes: metrics.by("vivavoce_requests_total", "outcome"),
    requests: metrics.sum("vivavoce_requests_total"),
    underruns: metrics.sum("vivavoce_underruns_total"),
    slots: metrics.sum("vivavoce_slots_used"),
    slotsTotal: metrics.sum("vivavoce_slots"),
    memory: metrics.sum("vivavoce_device_memory_bytes"),
    memoryTotal: metrics.sum("vivavoce_device_memory_total_bytes"),
  };
}

async function read() {
  try {
    const answer = ask("metrics", { silent: asked, cache: "no-store" });
    asked = true;
    const sample = sampleOf(new Metrics(await (await answer).text()));
    const last = samples.at(-1);
    // Counters that fell show that the server was restarted, so differences to older samples are wrong.
    if (last && (sample.requests < last.requests || sample.madeS < last.madeS)) samples = [];
    samples = [...samples.slice(-(KEPT - 1)), sample];
    tell(byId("trouble", HTMLElement), "");
    write(byId("state", HTMLElement), words(sample));
    write(byId("engines", HTMLElement), engines(sample));
    board.classList.remove("stale");
    show(sample);
  } catch (error) {
    const since = samples.at(-1);
    board.classList.add("stale");
    const ago = since && duration(Math.round(performance.now() / 1000 - since.at));
    write(byId("state", HTMLElement), ago ? t("The figures are {ago} old.", { ago }) : "");
    tell(byId("trouble", HTMLElement), explain(error));
  }
}

/** @param {Sample} sample */
function words({ up, draining, model, version }) {
  const health = draining === 1 ? "Shutting down." : up === 0 ? "The engine is not ready." : "Running.";
  return [t(health), model && t("Model {model}.", { model }), version && t("Version {version}.", { version })]
    .filter(Boolean).join(" ");
}

/**
 * Describe each engine, if there are several; a single engine has no name and is left out.
 * @param {Sample} sample
 */
function engines({ engines: { up, streams, capacity } }) {
  return [...up].filter(([name]) => name).map(([name, ready]) => ready
    ? t("{name}: {used} of {total} streams", {
      name, used: whole(streams.get(name) ?? NaN), total: whole(capacity.get(name) ?? NaN) })
    : t("{name}: not ready", { name })).join(" · ");
}

/** @param {Sample} now */
function show(now) {
  const recent = since(now.first, samples[0].first);
  const any = (recent?.counts.at(-1) ?? 0) > 0;
  const first = any ? recent : now.first;
  const speeds = rates((sample) => sample.madeS);
  const ages = samples.map(({ at }) => now.at - at);
  /**
   * @param {Tile} tile
   * @param {string} figure
   * @param {string} detail
   * @param {[string, number[]][]} lines
   * @param {number} [ceiling]
   */
  const tell = (tile, figure, detail, lines, ceiling) =>
    tile.show(figure, detail, lines.map(([name, values]) => ({ name: t(name), values })), ages, SPAN_S, ceiling);
  tell(tiles.streams, whole(now.streams), places(now),
    [["speaking", each((sample) => sample.streams)], ["waiting", each((sample) => sample.waiting)]]);
  tell(tiles.first, time(quantile(first, 0.5)),
    `${t("99 of 100 begin within {time}", { time: time(quantile(first, 0.99)) })} · ` +
      t(any ? "in the last 5 minutes" : "since the server began"), [["half:", firsts(0.5)], ["99 %:", firsts(0.99)]]);
  tell(tiles.speed, t("{n} s", { n: decimal(speeds.at(-1) ?? NaN) }), factor(now), [["", speeds]]);
  tell(tiles.requests, whole(now.requests), outcomes(now.outcomes), [["", rates((sample) => sample.requests)]]);
  tell(tiles.underruns, whole(now.underruns), t("listeners may have heard a gap"),
    [["", rates((sample) => sample.underruns)]]);
  tell(tiles.memory, gib(now.memory),
    Number.isNaN(now.memoryTotal) ? "" : t("of {total} that the machine has", { total: gib(now.memoryTotal) }),
    [["", each((sample) => sample.memory)]], now.memoryTotal);
}

/** @param {(sample: Sample) => number} figure */
function each(figure) {
  return samples.map(figure);
}

/**
 * Return the growth per second between neighbouring samples.
 * @param {(sample: Sample) => number} figure
 */
function rates(figure) {
  return samples.slice(1).map((sample, place) => {
    const before = samples[place];
    return (figure(sample) - figure(before)) / (sample.at - before.at);
  });
}

/**
 * Return a quantile of the time to first audio for each sample, over the 30 seconds before it.
 * @param {number} share
 */
function firsts(share) {
  return samples.map((sample, place) => quantile(since(sample.first, samples[Math.max(0, place - 15)].first), share));
}

/** @param {Sample} now */
function places({ waiting, slots, slotsTotal }) {
  const told = Number.isNaN(waiting) ? [] : [t("{count} waiting", { count: whole(waiting) })];
  if (slotsTotal > 0) told.push(t("{used} of {total} places taken", { used: whole(slots), total: whole(slotsTotal) }));
  return told.join(" · ");
}

/** @param {Sample} now */
function factor({ wallS, heardS }) {
  const share = wallS / heardS;
  const told = t("a second of sound takes {n} s of waiting", { n: share.toFixed(2) });
  return Number.isFinite(share) ? told : t("of all streams together");
}

/** @type {Record<string, string>} */
const OUTCOMES = { stop: "whole", length: "too long", incomplete: "words missing", cancelled: "stopped by listeners",
  error: "failed", refused: "refused" };

/** @param {Map<string, number>} counts */
function outcomes(counts) {
  const told = [...counts].filter(([, count]) => count > 0).map(([outcome, count]) =>
    `${whole(count)} ${t(OUTCOMES[outcome] ?? outcome)}`);
  return told.join(" · ") || t("none yet");
}

/** @param {number} count */
function whole(count) {
  return Number.isNaN(count) ? "–" : Math.round(count).toLocaleString(locale);
}

/** @param {number} value */
function decimal(value) {
  return Number.isFinite(value) ? value.toFixed(value < 10 ? 2 : 1) : "–";
}

/** @param {number} seconds */
function time(seconds) {
  return Number.isFinite(seconds) ? duration(seconds) : "–";
}

/** @param {number} bytes */
function gib(bytes) {
  return Number.isFinite(bytes) ? `${(bytes / 2 ** 30).toFixed(2)} GiB` : "–";
}

async function loop() {
  clearTimeout(timer);
  if (document.visibilityState !== "visible") return;
  await read();
  clearTimeout(timer);
  timer = setTimeout(loop, PERIOD_MS);
}

board.append(...Object.values(tiles).map((tile) => tile.root));
document.addEventListener("visibilitychange", loop);
loop();
