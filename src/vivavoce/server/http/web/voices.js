/** The page of voices: list, listen, add, delete. */

import { ask, explain } from "./api.js";
import { byId, confirmed, element, tell, write } from "./dom.js";
import { header } from "./header.js";
import { t } from "./i18n.js";
import { KEY_CHANGED, knownKey } from "./key.js";
import { Preview } from "./preview.js";
import { Reference } from "./reference.js";
import { sentence } from "./samples.js";
import { about, listenButton, MANY, markCard } from "./voice-picker.js";

header();

const list = byId("voices", HTMLUListElement);
const state = byId("state", HTMLElement);
const trouble = byId("trouble", HTMLElement);
const addTrouble = byId("add-trouble", HTMLElement);
const spoken = byId("sentence", HTMLInputElement);
const find = byId("find", HTMLInputElement);
const reference = new Reference();
const fields = {
  name: byId("name", HTMLInputElement),
  description: byId("description", HTMLInputElement),
  consent: byId("consent", HTMLInputElement),
  consentBy: byId("consent-by", HTMLInputElement),
  public: byId("public", HTMLInputElement),
  replace: byId("replace", HTMLInputElement),
  send: byId("add-voice", HTMLButtonElement),
};

/** @type {import("./utterance.js").Model} */
let model = { name: "", rate: 24_000 };

const preview = new Preview(() => model, (words, wrong) => {
  write(state, words);
  tell(trouble, wrong);
});

async function load() {
  preview.hush();
  // Without a key, all voices are public.
  byId("public-field", HTMLElement).hidden = knownKey() === "";
  try {
    const { data: [first] } = await (await ask("v1/models")).json();
    model = { name: first.id, rate: first.sample_rate };
    spoken.value ||= sentence(first.demo);
    const { data: voices } = await (await ask("v1/audio/voices")).json();
    const own = voices.filter(({ kind }) => kind !== "alias");
    list.replaceChildren(...own.map((voice) => item(voice, voices.filter((one) => one.stands_for === voice.name))));
    byId("find-field", HTMLElement).hidden = own.length < MANY;
    filter();
    write(state, own.length === 1 ? t("1 voice") : t("{count} voices", { count: own.length }));
  } catch (error) {
    write(state, "");
    tell(trouble, explain(error));
  }
}

/**
 * @param {import("./voice-picker.js").Voice} voice
 * @param {import("./voice-picker.js").Voice[]} aliases Other names of the voice.
 * @returns {HTMLLIElement}
 */
function item(voice, aliases) {
  const { name, transcript } = voice;
  const row = element("li", { className: "voice", "data-voice": name });
  const hear = listenButton();
  hear.addEventListener("click", () => preview.toggle(name, row, spoken.value));
  const use = element("a", { className: "button", href: `./?voice=${encodeURIComponent(name)}`,
    "aria-label": t("Use {name}", { name }) }, t("Use"));
  const buttons = element("div", { className: "row wrap" }, use);
  if (voice.kind === "stored") {
    const gone = element("button", { type: "button", "aria-label": t("Delete {name}", { name }) }, t("Delete"));
    gone.addEventListener("click", () => remove(voice));
    buttons.append(gone);
  }
  row.append(hear, element("div", { className: "what" },
    element("strong", {}, name),
    element("p", { className: "hint" }, about(voice, knownKey() !== "")),
    ...(aliases.length ? [element("p", { className: "hint" },
      t("Programs may call it {names}.", { names: aliases.map((one) => one.name).join(", ") }))] : []),
    ...(transcript ? [element("p", { className: "excerpt hint" }, `“${transcript}”`)] : []),
    buttons));
  markCard(row, "idle");
  return row;
}

function filter() {
  const wanted = find.value.trim().toLowerCase();
  for (const row of list.children)
    if (row instanceof HTMLElement) row.hidden = !row.textContent?.toLowerCase().includes(wanted);
}

/** @param {import("./voice-picker.js").Voice} voice */
async function remove(voice) {
  const question = t("Delete the voice “{name}”?", { name: voice.name });
  const whose = voice.public ? ` ${t("Everyone on this server loses it.")}` : "";
  if (!(await confirmed(question + whose, t("Delete")))) return;
  try {
    await ask(`v1/audio/voices/${encodeURIComponent(voice.name)}?public=${voice.public}`, { method: "DELETE" });
    tell(trouble, "");
    await load();
    write(state, t("“{name}” is deleted.", { name: voice.name }));
    byId("list-title", HTMLElement).focus();
  } catch (error) {
    tell(trouble, explain(error));
  }
}

async function add() {
  const name = fields.name.value.trim();
  const missing = name ? reference.complaint() : { message: t("Give the voice a name."), where: fields.name };
  tell(addTrouble, missing?.message ?? "");
  if (missing || !reference.recording) {
    missing?.where.focus();
    return;
  }
  const body = new FormData();
  body.append("name", name);
  body.append("transcript", reference.transcript);
  body.append("description", fields.description.value.trim());
  body.append("consent", fields.consent.value.trim());
  body.append("consent_by", fields.consentBy.value.trim());
  if (fields.replace.checked) body.append("replace", "true");
  if (fields.public.checked) body.append("public", "true");
  body.append("file", reference.recording, "reference");
  fields.send.disabled = true;
  fields.send.textContent = t("Adding …");
  try {
    const { warnings = [] } = await (await ask("v1/audio/voices", { method: "POST", body })).json();
    byId("add", HTMLFormElement).reset();
    reference.clear();
    await load();
    const notes = warnings.map((/** @type {string} */ problem) => t("The recording {problem}.", { problem }));
    write(state, [t("“{name}” is added.", { name }), ...notes].join(" "));
  } catch (error) {
    tell(addTrouble, explain(error));
  } finally {
    fields.send.disabled = false;
    fields.send.textContent = t("Add voice");
  }
}

byId("add", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  add();
});
find.addEventListener("input", filter);
// The key decides which owner's voices are listed.
document.addEventListener(KEY_CHANGED, load);

load();
