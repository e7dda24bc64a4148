/** The page of voices: list, listen, add, delete. */

import { ask, explain } from "./api.js";
import { byId, confirmed, element, tell, write } from "./dom.js";
import { KEY_CHANGED, watchKeyButton } from "./key.js";
import { Reference } from "./reference.js";
import { NOTHING } from "./speech.js";
import { Utterance } from "./utterance.js";

/**
 * @typedef {object} Voice
 * @property {string} name
 * @property {"built_in" | "stored" | "alias"} kind
 * @property {boolean} public
 * @property {string} description
 * @property {string} transcript
 * @property {boolean} has_prompt
 */

const list = byId("voices", HTMLUListElement);
const state = byId("state", HTMLElement);
const trouble = byId("trouble", HTMLElement);
const addTrouble = byId("add-trouble", HTMLElement);
const reference = new Reference();
const fields = {
  name: byId("name", HTMLInputElement),
  description: byId("description", HTMLInputElement),
  public: byId("public", HTMLInputElement),
  replace: byId("replace", HTMLInputElement),
  send: byId("add-voice", HTMLButtonElement),
};

/** @type {import("./utterance.js").Model} */
let model = { name: "", rate: 24_000 };
/** @type {Utterance | null} One voice is heard at a time. */
let utterance = null;

async function load() {
  hush();
  try {
    const { data: models } = await (await ask("v1/models")).json();
    if (models[0]) model = { name: models[0].id, rate: models[0].sample_rate || model.rate };
    const { data: names } = await (await ask("v1/audio/voices")).json();
    const voices = names.filter((/** @type {Voice} */ voice) => voice.kind !== "alias");
    list.replaceChildren(...voices.map(item));
    write(state, voices.length === 1 ? "1 voice" : `${voices.length} voices`);
  } catch (error) {
    write(state, "");
    tell(trouble, explain(error));
  }
}

/**
 * @param {Voice} voice
 * @returns {HTMLLIElement}
 */
function item(voice) {
  const about = [voice.kind === "built_in" ? "built in" : "stored", voice.public ? "for everyone" : "yours alone"];
  if (!voice.has_prompt) about.push("no reference speech");
  const row = element("li", { "data-voice": voice.name });
  const hear = element("button", { type: "button" });
  hear.addEventListener("click", () => listen(voice, row));
  const use = element("a", { className: "button", href: `./?voice=${encodeURIComponent(voice.name)}`,
    "aria-label": `Speak with ${voice.name}` }, "Speak with it");
  const buttons = element("div", { className: "row wrap" }, hear, use);
  if (voice.kind === "stored") {
    const gone = element("button", { type: "button", "aria-label": `Delete ${voice.name}` }, "Delete");
    gone.addEventListener("click", () => remove(voice));
    buttons.append(gone);
  }
  row.append(
    element("div", { className: "row" }, element("strong", {}, voice.name),
      element("span", { className: "hint" }, about.join(" · "))),
    ...[voice.description, voice.transcript && `“${voice.transcript}”`].filter(Boolean)
      .map((text) => element("p", { className: "excerpt hint" }, text)),
    buttons);
  mark(row, "idle");
  return row;
}

/**
 * Show how far the sentence is in a voice's row.
 * @param {HTMLElement} row
 * @param {import("./utterance.js").State} how
 */
function mark(row, how) {
  row.dataset.state = how;
  const button = /** @type {HTMLButtonElement} */ (row.querySelector("button"));
  button.textContent = sounds(row) ? "Stop" : "Listen";
  button.setAttribute("aria-label", `${button.textContent} ${sounds(row) ? "" : "to "}${row.dataset.voice}`);
}

/** @param {HTMLElement} row */
function sounds({ dataset: { state: how } }) {
  return how === "waiting" || how === "playing" || how === "paused";
}

function hush() {
  const sounding = utterance;
  utterance = null;
  sounding?.stop();
  for (const row of list.children) if (row instanceof HTMLElement) mark(row, "idle");
}

/**
 * Speak the sentence in a voice, or stop it.
 * @param {Voice} voice
 * @param {HTMLLIElement} row
 */
async function listen(voice, row) {
  const stopping = sounds(row);
  hush();
  write(state, "");
  if (stopping) return;
  const text = byId("sentence", HTMLInputElement).value;
  const mine = new Utterance({ ...NOTHING, text, voice: voice.name }, model, () => {
    if (mine !== utterance) return;
    mark(row, mine.state);
    write(state, mine.silent ? "" : `${mine.state === "playing" ? "Listening to" : "Waiting for"} ${voice.name} …`);
    tell(trouble, mine.trouble);
  });
  utterance = mine;
  mine.changed();
  await mine.run(() => {});
}

/** @param {Voice} voice */
async function remove(voice) {
  const whose = voice.public ? " Everyone on this server loses it." : "";
  if (!(await confirmed(`Delete the voice “${voice.name}”?${whose}`, "Delete"))) return;
  try {
    await ask(`v1/audio/voices/${encodeURIComponent(voice.name)}?public=${voice.public}`, { method: "DELETE" });
    tell(trouble, "");
    await load();
    write(state, `“${voice.name}” is deleted.`);
    byId("list-title", HTMLElement).focus();
  } catch (error) {
    tell(trouble, explain(error));
  }
}

async function add() {
  const name = fields.name.value.trim();
  tell(addTrouble, "");
  if (!name || !reference.recording) {
    tell(addTrouble, name ? "Record the voice or choose a file first." : "Give the voice a name.");
    (name ? reference.button.disabled ? reference.file : reference.button : fields.name).focus();
    return;
  }
  const body = new FormData();
  body.append("name", name);
  body.append("transcript", reference.transcript);
  body.append("description", fields.description.value.trim());
  if (fields.replace.checked) body.append("replace", "true");
  if (fields.public.checked) body.append("public", "true");
  body.append("file", reference.recording, "reference");
  fields.send.disabled = true;
  fields.send.textContent = "Adding …";
  try {
    await ask("v1/audio/voices", { method: "POST", body });
    byId("add", HTMLFormElement).reset();
    reference.clear();
    await load();
    write(state, `“${name}” is added.`);
  } catch (error) {
    tell(addTrouble, explain(error));
  } finally {
    fields.send.disabled = false;
    fields.send.textContent = "Add voice";
  }
}

byId("add", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  add();
});
// Whose voices are listed depends on the key.
document.addEventListener(KEY_CHANGED, load);

watchKeyButton();
load();
