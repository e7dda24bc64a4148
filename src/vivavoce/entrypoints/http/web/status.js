/** The page of a server's figures, read again and again while somebody looks at it. */

import { ask, explain } from "./api.js";
import { Tile } from "./chart.js";
import { byId, duration, tell, write } from "./dom.js";
import { watchKeyButton } from "./key.js";
import { Metrics, quantile, since } from "./prometheus.js";

const PERIOD_MS = 2000;
/** So many samples make 5 minutes. */
const KEPT = 150;

/** What is kept of one scrape; NaN: not told. */
/** @typedef {ReturnType<typeof sampleOf>} Sample */

/** @type {Sample[]} From old to new. */
let samples = [];
/** @type {ReturnType<typeof setTimeout> | undefined} */
let timer;
/** A key is asked for once; who does not give one is not asked again every 2 seconds. */
let asked = false;

const tiles = {
  streams: new Tile("Streams", "streams"),
  first: new Tile("First sound, p50 / p99", "first"),
  speed: new Tile("Audio made per second", "speed"),
  requests: new Tile("Requests", "requests"),
  underruns: new Tile("Underruns", "underruns"),
  slots: new Tile("Slots", "slots"),
  memory: new Tile("Device memory", "memory"),
};

/** @param {Metrics} metrics */
function sampleOf(metrics) {
  const made = metrics.sum("vivavoce_engine_audio_seconds_total");
  const heard = metrics.sum("vivavoce_audio_seconds_total");
  return {
    at: performance.now() / 1000,
    up: metrics.sum("vivavoce_engine_up"),
    draining: metrics.sum("vivavoce_draining"),
    model: metrics.label("vivavoce_build_info", "model"),
    version: metrics.label("vivavoce_build_info", "version"),
    streams: metrics.sum("vivavoce_streams_active"),
    waiting: metrics.sum("vivavoce_requests_waiting"),
    first: metrics.histogram("vivavoce_first_audio_seconds"),
    // A speaker elsewhere tells nothing of its engine; what listeners got is known always.
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
    // Counters that fell began anew: the server was restarted, and differences would be nonsense.
    if (last && (sample.requests < last.requests || sample.madeS < last.madeS)) samples = [];
    samples = [...samples.slice(-(KEPT - 1)), sample];
    tell(byId("trouble", HTMLElement), "");
    write(byId("state", HTMLElement), words(sample));
    show(sample);
  } catch (error) {
    write(byId("state", HTMLElement), "");
    tell(byId("trouble", HTMLElement), explain(error));
  }
}

/** @param {Sample} sample */
function words({ up, draining, model, version }) {
  const health = draining === 1 ? "Shutting down." : up === 0 ? "The engine is not ready." : "Running.";
  return [health, model && `Model ${model}.`, version && `Version ${version}.`].filter(Boolean).join(" ");
}

/** @param {Sample} now */
function show(now) {
  const recent = since(now.first, samples[0].first);
  const any = (recent?.counts.at(-1) ?? 0) > 0;
  const first = any ? recent : now.first;
  const speeds = rates((sample) => sample.madeS);
  tiles.streams.show(whole(now.streams), waiting(now.waiting), [
    each((sample) => sample.streams), each((sample) => sample.waiting)]);
  tiles.first.show(`${time(quantile(first, 0.5))} / ${time(quantile(first, 0.99))}`,
    any ? "in the last 5 minutes" : "since the server began", [firsts(0.5), firsts(0.99)]);
  tiles.speed.show(`${decimal(speeds.at(-1) ?? NaN)} s`, factor(now), [speeds]);
  tiles.requests.show(whole(now.requests), outcomes(now.outcomes), [rates((sample) => sample.requests)]);
  tiles.underruns.show(whole(now.underruns), "pieces of audio that came too late",
    [rates((sample) => sample.underruns)]);
  tiles.slots.show(`${whole(now.slots)} / ${whole(now.slotsTotal)}`, "sequences that are decoded now",
    [each((sample) => sample.slots)], now.slotsTotal);
  tiles.memory.show(gib(now.memory), Number.isNaN(now.memoryTotal) ? "" : `of ${gib(now.memoryTotal)}`,
    [each((sample) => sample.memory)], now.memoryTotal);
}

/** @param {(sample: Sample) => number} figure */
function each(figure) {
  return samples.map(figure);
}

/**
 * Growth per second between neighbouring samples.
 * @param {(sample: Sample) => number} figure
 */
function rates(figure) {
  return samples.slice(1).map((sample, place) => {
    const before = samples[place];
    return (figure(sample) - figure(before)) / (sample.at - before.at);
  });
}

/**
 * A quantile of the time to first audio, of the 30 seconds before each sample.
 * @param {number} share
 */
function firsts(share) {
  return samples.map((sample, place) => quantile(since(sample.first, samples[Math.max(0, place - 15)].first), share));
}

/** @param {number} count */
function waiting(count) {
  return Number.isNaN(count) ? "running" : `running; ${whole(count)} waiting`;
}

/** @param {Sample} now */
function factor({ wallS, heardS }) {
  const share = wallS / heardS;
  return Number.isFinite(share) ? `real-time factor of a stream ${share.toFixed(2)}` : "in all streams together";
}

/** @param {Map<string, number>} counts */
function outcomes(counts) {
  const words = [...counts].filter(([, count]) => count > 0).map(([outcome, count]) => `${whole(count)} ${outcome}`);
  return words.join(" · ") || "none yet";
}

/** @param {number} count */
function whole(count) {
  return Number.isNaN(count) ? "–" : Math.round(count).toLocaleString("en");
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

byId("tiles", HTMLElement).append(...Object.values(tiles).map((tile) => tile.root));
document.addEventListener("visibilitychange", loop);
watchKeyButton();
loop();
