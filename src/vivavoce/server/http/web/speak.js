/** The page that speaks a text. */

import { ask, explain } from "./api.js";
import { byId, clock, copy, duration, save, tell, write } from "./dom.js";
import { header } from "./header.js";
import { Highlight } from "./highlight.js";
import { fileName, HistoryList } from "./history-list.js";
import { t } from "./i18n.js";
import { KEY_CHANGED } from "./key.js";
import { Picture } from "./picture.js";
import { volume } from "./player.js";
import { Preview } from "./preview.js";
import { sentence } from "./samples.js";
import { asCurl, asPython } from "./snippets.js";
import { mp3Of, wavOf } from "./speech.js";
import { subtitles } from "./subtitles.js";
import { Utterance } from "./utterance.js";
import { WishForm } from "./wish-form.js";

header();

/** Seconds by which an arrow key and a page key move the playback position. */
const STEP_S = 2;
const LEAP_S = 15;

const trouble = byId("trouble", HTMLElement);
const sound = byId("sound", HTMLElement);
const state = byId("state", HTMLElement);
const canvas = byId("picture", HTMLCanvasElement);
const seek = byId("seek", HTMLInputElement);
const loudness = byId("volume", HTMLInputElement);
const button = Object.fromEntries(["speak", "pause", "stop", "now", "wav", "mp3", "srt", "vtt", "curl", "python"].map(
  (id) => [id, byId(id, HTMLButtonElement)]));
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** @type {import("./utterance.js").Model & {demo: boolean}} */
let model = { name: "vivavoce", rate: 24_000, demo: true };
/** @type {Utterance | null} The newest utterance, which the page shows. */
let utterance = null;
/** Whether the next call of `follow` is scheduled. */
let isFollowing = false;

const preview = new Preview(() => model, (words, wrong) => {
  write(state, words);
  tell(trouble, wrong);
});
const form = new WishForm((name, card) => preview.toggle(name, card, sentence(model.demo)), speak);
const picture = new Picture(canvas);
const highlight = new Highlight(form.text, byId("mirror", HTMLElement));
const history = new HistoryList((wish) => form.fill(wish), reopen);

/**
 * Make a new utterance and show it. Call this in the handler of a click or key press, as `Player` requires.
 * @param {import("./speech.js").Wish} wish
 */
function begin(wish) {
  utterance?.player.free();
  utterance = new Utterance(wish, model, show);
  picture.reset(model.rate);
  show();
  return utterance;
}

async function speak() {
  const complaint = form.complaint();
  tell(trouble, complaint?.message ?? "");
  if (complaint) {
    utterance?.stop();
    complaint.where.focus();
    return;
  }
  const mine = begin(form.wish());
  const when = Date.now();
  await mine.run((samples) => mine === utterance && picture.push(samples));
  if (mine.take.length)
    await history.add({
      when,
      wish: mine.wish,
      audio: mine.take.wav(),
      seconds: mine.take.seconds,
      segments: mine.segments,
      verdict: mine.ending === "cancelled" ? "stopped" : mine.ending ?? "",
    });
}

/**
 * Play an entry of the history.
 * @param {import("./history.js").Entry} entry
 */
async function reopen(entry) {
  form.fill(entry.wish);
  picture.push(await begin(entry.wish).restore(entry));
  show();
}

/** Show the state of the newest utterance. */
function show() {
  if (!utterance) return;
  const { state: how, take, ending, silent, segments, player } = utterance;
  sound.dataset.state = how;
  sound.dataset.ending = ending ?? "";
  write(state, words(utterance));
  tell(trouble, utterance.trouble);
  button.pause.disabled = take.length === 0;
  button.pause.textContent = t(how === "playing" || how === "waiting" ? "Pause" : ending && silent ? "Play" : "Go on");
  button.stop.disabled = silent && ending !== null;
  button.now.hidden = how !== "waiting" || player.at >= take.length;
  canvas.hidden = byId("transport", HTMLElement).hidden = take.length === 0;
  byId("results", HTMLElement).hidden = take.length === 0 || ending === null;
  button.srt.hidden = button.vtt.hidden = segments.length === 0;
  if (ending !== null) picture.end();
  showFigures(utterance);
  if (!isFollowing) follow();
}

/** @param {Utterance} shown */
function showFigures({ firstMs, realTimeFactor, take, player }) {
  const figures = {
    "first-sound": Number.isNaN(firstMs) ? "–" : duration(firstMs / 1000),
    "real-time": Number.isNaN(realTimeFactor) ? "–" : realTimeFactor.toFixed(realTimeFactor < 0.1 ? 3 : 2),
    "audio-time": duration(take.seconds),
    gaps: String(player.gaps),
  };
  for (const [id, figure] of Object.entries(figures)) write(byId(id, HTMLElement), take.length ? figure : "–");
}

/**
 * @param {Utterance} shown
 * @returns {string}
 */
function words({ state: how, ending, take, retryAt, player }) {
  if (!Number.isNaN(retryAt)) return t("The server is busy; the page asks again.");
  if (how === "waiting" && take.length === 0) return t("Waiting for the first sound …");
  if (how === "waiting" && player.complete) return t("Waiting for more sound …");
  if (how === "waiting") return t("This server makes sound more slowly than it plays: sound is gathered first.");
  if (how === "playing") return t("Speaking …");
  if (how === "paused") return t("Paused.");
  if (how === "finished") return t(ending === "cancelled" ? "Ended early." : "Finished.");
  if (how === "idle") return t("Stopped.");
  return t(ending === "cut" ? "Cut off." : "Failed.");
}

/** What the page waits for, and how long: outside of the live region, so that no screen reader reads each second. */
function countdown() {
  if (!utterance || utterance.silent) return "";
  const { retryAt, player, pace, take } = utterance;
  const again = (retryAt - performance.now()) / 1000;
  if (again > 0) return t("Next try in {seconds} s.", { seconds: Math.ceil(again) });
  if (player.state !== "waiting" || take.length === 0) return "";
  const left = player.lackS / Math.min(1, pace.rate) - (performance.now() - pace.began) / 1000 + pace.lastS;
  return left > 1 && left < 3600 ? t("It plays in about {seconds} s.", { seconds: Math.ceil(left) }) : "";
}

/** Update picture, highlight and times again and again until playback is over. */
function follow() {
  isFollowing = false;
  if (!utterance) return;
  const { player, take, silent, heardShare, totalS, wish, ending } = utterance;
  picture.playhead(heardShare);
  highlight.show(wish.text, utterance.segment);
  write(byId("countdown", HTMLElement), countdown());
  write(byId("elapsed", HTMLElement), clock(player.heardS));
  write(byId("total", HTMLElement), (ending === null ? "≈ " : "") + clock(totalS));
  seek.max = String(take.seconds);
  seek.value = String(player.heardS);
  const place = t("{heard} of {total}", { heard: clock(player.heardS), total: clock(totalS) });
  if (seek.getAttribute("aria-valuetext") !== place) seek.setAttribute("aria-valuetext", place);
  if (silent) return;
  isFollowing = true;
  if (calm.matches) setTimeout(follow, 250);
  else requestAnimationFrame(follow);
}

/** @param {string} format */
function named(format) {
  return utterance ? fileName(utterance.wish, Date.now(), format) : "";
}

/** @param {"mp3" | "wav"} format */
async function saveAudio(format) {
  if (!utterance) return;
  const { take, segments } = utterance;
  const name = named(format);
  button[format].disabled = true;
  try {
    save(await (format === "mp3" ? mp3Of(take, segments) : wavOf(take)), name);
    tell(trouble, "");
  } catch (error) {
    tell(trouble, explain(error));
  } finally {
    button[format].disabled = false;
  }
}

/** @param {"srt" | "vtt"} format */
function saveSubtitles(format) {
  if (!utterance) return;
  const { wish, segments, take } = utterance;
  save(subtitles(format, wish.text, segments, take.seconds), named(format));
}

/** @param {(wish: import("./speech.js").Wish, model: string) => string} written */
async function copyCode(written) {
  const wish = form.wish();
  await copy(written({ ...wish, text: wish.text || sentence(true) }, model.name));
  write(byId("copied", HTMLElement), t("Copied."));
}

/** Learn which model speaks and which voices there are. */
async function learn() {
  try {
    const { data: [first] } = await (await ask("v1/models")).json();
    model = { name: first.id, rate: first.sample_rate, demo: first.demo };
    byId("demo", HTMLElement).hidden = !first.demo;
    form.suit(first.demo, first.instructions !== false);
    const { data: voices } = await (await ask("v1/audio/voices")).json();
    form.offer(voices.filter((/** @type {{kind: string}} */ { kind }) => kind !== "alias"), new URLSearchParams(location.search).get("voice"));
  } catch (error) {
    tell(trouble, explain(error));
  }
}

byId("wish", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  speak();
});
form.text.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  speak();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  utterance?.stop();
  preview.hush();
});
button.pause.addEventListener("click", () => {
  if (utterance?.state === "playing" || utterance?.state === "waiting") utterance.player.pause();
  else utterance?.play();
});
button.stop.addEventListener("click", () => utterance?.stop());
button.now.addEventListener("click", () => utterance?.player.hurry());
button.wav.addEventListener("click", () => saveAudio("wav"));
button.mp3.addEventListener("click", () => saveAudio("mp3"));
button.srt.addEventListener("click", () => saveSubtitles("srt"));
button.vtt.addEventListener("click", () => saveSubtitles("vtt"));
button.curl.addEventListener("click", () => copyCode(asCurl));
button.python.addEventListener("click", () => copyCode(asPython));
seek.addEventListener("input", () => utterance?.seek(Number(seek.value)));
seek.addEventListener("keydown", (event) => {
  /** @type {Record<string, number>} */
  const moves = { ArrowLeft: -STEP_S, ArrowDown: -STEP_S, ArrowRight: STEP_S, ArrowUp: STEP_S,
    PageDown: -LEAP_S, PageUp: LEAP_S };
  if (!utterance || !(event.key in moves)) return;
  event.preventDefault();
  utterance.seek(utterance.player.heardS + moves[event.key]);
});
canvas.addEventListener("click", (event) =>
  utterance?.seek(picture.shareAt(event.offsetX) * utterance.take.seconds));
loudness.value = String(volume());
loudness.addEventListener("input", () => utterance?.player.setVolume(Number(loudness.value)));

document.addEventListener(KEY_CHANGED, learn);

learn();
