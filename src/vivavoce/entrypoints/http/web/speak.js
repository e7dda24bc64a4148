/** The page that speaks a text. */

import { ask, explain } from "./api.js";
import { byId, duration, save, tell, write } from "./dom.js";
import { Highlight } from "./highlight.js";
import { fileName, HistoryList } from "./history-list.js";
import { KEY_CHANGED, watchKeyButton } from "./key.js";
import { Picture } from "./picture.js";
import { speechFile } from "./speech.js";
import { Utterance } from "./utterance.js";
import { WishForm } from "./wish-form.js";

const form = new WishForm();
const picture = new Picture(byId("picture", HTMLCanvasElement));
const highlight = new Highlight(form.text, byId("mirror", HTMLElement));
const history = new HistoryList((wish) => form.fill(wish));
const sound = byId("sound", HTMLElement);
const trouble = byId("trouble", HTMLElement);
const buttons = {
  speak: byId("speak", HTMLButtonElement),
  pause: byId("pause", HTMLButtonElement),
  stop: byId("stop", HTMLButtonElement),
  again: byId("again", HTMLButtonElement),
  wav: byId("wav", HTMLButtonElement),
  mp3: byId("mp3", HTMLButtonElement),
};
const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** @type {import("./utterance.js").Model} */
let model = { name: "vivavoce", rate: 24_000 };
/** @type {Utterance | null} */
let utterance = null;

async function speak() {
  utterance?.stop();
  const complaint = form.complaint();
  tell(trouble, complaint?.message ?? "");
  if (complaint) {
    complaint.where.focus();
    return;
  }
  const mine = new Utterance(form.wish(), model, show);
  const when = Date.now();
  utterance = mine;
  picture.reset(model.rate);
  show();
  follow();
  await mine.run((samples) => mine === utterance && picture.push(samples));
  if (mine.take.length)
    await history.add({
      when,
      wish: mine.wish,
      audio: mine.take.wav(),
      seconds: mine.take.seconds,
      verdict: mine.ending === "cancelled" ? "stopped" : mine.ending ?? "",
    });
}

/** Show the state of the newest utterance. */
function show() {
  if (!utterance) return;
  const { state, take, ending, silent } = utterance;
  sound.dataset.state = state;
  sound.dataset.ending = ending ?? "";
  write(byId("state", HTMLElement), words(utterance));
  tell(trouble, utterance.trouble);
  buttons.pause.disabled = silent;
  buttons.pause.textContent = state === "paused" ? "Go on" : "Pause";
  buttons.stop.disabled = silent && ending !== null;
  byId("results", HTMLElement).hidden = take.length === 0 || ending === null;
  buttons.again.disabled = !silent;
  if (ending !== null) picture.end();
  showFigures(utterance);
}

/** @param {Utterance} shown */
function showFigures({ firstMs, realTimeFactor, take, player }) {
  const figures = {
    "first-sound": duration(firstMs / 1000),
    "real-time": realTimeFactor.toFixed(realTimeFactor < 0.1 ? 3 : 2),
    "audio-time": duration(take.seconds),
    gaps: String(player.gaps),
  };
  for (const [id, figure] of Object.entries(figures)) write(byId(id, HTMLElement), take.length ? figure : "–");
}

/**
 * @param {Utterance} shown
 * @returns {string}
 */
function words({ state, ending, take }) {
  if (state === "waiting") return take.length ? "Waiting for more sound …" : "Waiting for the first sound …";
  if (state === "playing") return "Speaking …";
  if (state === "paused") return "Paused.";
  if (state === "finished") return ending === "cancelled" ? "Ended early." : "Finished.";
  if (state === "idle") return "Stopped.";
  return ending === "cut" ? "Cut off." : "Failed.";
}

/** Let picture and text follow the playback until it is over. */
function follow() {
  const mine = utterance;
  if (!mine) return;
  picture.playhead(mine.heardShare);
  highlight.show(mine.wish.text, mine.segment);
  if (mine.silent) return;
  const next = () => mine === utterance && follow();
  if (calm.matches) setTimeout(next, 500);
  else requestAnimationFrame(next);
}

async function saveMp3() {
  if (!utterance) return;
  const { wish } = utterance;
  buttons.mp3.disabled = true;
  write(byId("state", HTMLElement), "Asking for the MP3 …");
  try {
    save(await speechFile(wish, model.name, "mp3"), fileName(wish, Date.now(), "mp3"));
    write(byId("state", HTMLElement), "The MP3 is saved.");
  } catch (error) {
    tell(trouble, explain(error));
  } finally {
    buttons.mp3.disabled = false;
  }
}

/** Learn which model speaks and which voices there are. */
async function learn() {
  try {
    const { data: models } = await (await ask("v1/models")).json();
    if (models[0]) model = { name: models[0].id, rate: models[0].sample_rate || model.rate };
    if (models[0]?.demo)
      tell(byId("demo", HTMLElement), "This model shows how the program works; it is no real voice.");
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
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) utterance?.stop();
});
buttons.pause.addEventListener("click", () =>
  utterance?.state === "paused" ? utterance.player.resume() : utterance?.player.pause());
buttons.stop.addEventListener("click", () => utterance?.stop());
buttons.again.addEventListener("click", () => {
  utterance?.replay();
  follow();
});
buttons.wav.addEventListener("click", () =>
  utterance && save(utterance.take.wav(), fileName(utterance.wish, Date.now(), "wav")));
buttons.mp3.addEventListener("click", saveMp3);

document.addEventListener(KEY_CHANGED, () => form.voices.size === 0 && learn());

watchKeyButton();
learn();
