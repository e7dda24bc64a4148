/** The page of books: open a file, choose chapters and voices, follow the job, listen to it, download the result. */

import { ask, explain } from "./api.js";
import { BookPlayer } from "./book-player.js";
import { byId, clock, confirmed, element, save, tell, write } from "./dom.js";
import { header } from "./header.js";
import { locale, t } from "./i18n.js";
import { KEY_CHANGED, knownKey } from "./key.js";

header();

const JOBS = "v1/audio/jobs";

/** Milliseconds between two requests for the state of unfinished jobs. */
const LOOK_MS = 2_000;

/**
 * @typedef {{number: number, title: string, characters: number, estimated_seconds: number, start_s: number | null}} Chapter
 * @typedef {object} Job
 * @property {string} id
 * @property {"queued" | "running" | "writing" | "done" | "failed"} status
 * @property {string} title
 * @property {string} response_format
 * @property {number} characters
 * @property {number} characters_spoken
 * @property {number | null} chapter
 * @property {number} audio_seconds
 * @property {number | null} seconds_left
 * @property {Chapter[]} chapters
 * @property {{message: string} | null} error
 */

const list = byId("jobs", HTMLUListElement);
const state = byId("state", HTMLElement);
const trouble = byId("trouble", HTMLElement);
const makeTrouble = byId("make-trouble", HTMLElement);
const form = byId("make", HTMLFormElement);
const book = byId("book", HTMLInputElement);
const found = byId("found", HTMLElement);
const chapters = byId("chapters", HTMLElement);
const all = byId("all", HTMLInputElement);
const narrator = byId("narrator", HTMLSelectElement);
const cast = byId("cast", HTMLElement);
const begin = byId("begin", HTMLButtonElement);

/** @type {string[]} */
let voices = [];
/** @type {File | null} */
let file = null;
/** @type {Map<string, {row: HTMLLIElement, show: (job: Job) => void}>} */
const rows = new Map();
/** @type {number | undefined} */
let timer;

async function load() {
  try {
    const { data } = await (await ask("v1/audio/voices")).json();
    voices = data.map((/** @type {{name: string}} */ { name }) => name);
    narrator.replaceChildren(...voices.map((name) => element("option", { value: name }, name)));
  } catch (error) {
    tell(trouble, explain(error));
  }
  await look();
}

async function look() {
  clearTimeout(timer);
  try {
    const { data } = await (await ask(JOBS)).json();
    show(data);
    tell(trouble, "");
    if (data.some((/** @type {Job} */ { status }) => status !== "done" && status !== "failed"))
      timer = setTimeout(look, LOOK_MS);
  } catch (error) {
    const off = /** @type {any} */ (error).status === 404;
    write(state, "");
    tell(trouble, off ? t("This server makes no books. To make them, start it with --jobs and a folder.") : explain(error));
    form.hidden = off;
    if (!off) timer = setTimeout(look, 5 * LOOK_MS);
  }
}

/** @param {Job[]} jobs */
function show(jobs) {
  for (const [id, { row }] of rows)
    if (!jobs.some((job) => job.id === id)) {
      row.remove();
      rows.delete(id);
    }
  jobs.forEach((job, place) => {
    const one = rows.get(job.id) ?? item(job);
    rows.set(job.id, one);
    if (list.children[place] !== one.row) list.insertBefore(one.row, list.children[place] ?? null);
    one.show(job);
  });
  write(state, jobs.length === 1 ? t("1 book") : t("{count} books", { count: jobs.length }));
}

/** @param {Job} first */
function item(first) {
  let job = first;
  const told = element("p", { className: "hint" });
  const bar = element("progress", { max: 1, value: 0, "aria-label": t("Spoken so far") });
  const from = element("select", { "aria-label": t("Listen from") });
  const hear = element("button", { type: "button" }, t("Listen"));
  const load = element("button", { type: "button", hidden: true }, t("Download"));
  const gone = element("button", { type: "button" }, t("Delete"));
  const row = element("li", { "data-job": job.id }, element("strong", {}, job.title), told, bar,
    element("div", { className: "row wrap" }, from, hear, load, gone));
  const player = new BookPlayer(`${JOBS}/${encodeURIComponent(job.id)}/audio?format=wav`, () => {
    row.dataset.state = player.state;
    hear.textContent = player.sounds ? t("Stop") : t("Listen");
  }, (error) => tell(trouble, explain(error)));
  hear.addEventListener("click", () => player.sounds ? player.stop() : player.play(Number(from.value)));
  load.addEventListener("click", () => download(job));
  gone.addEventListener("click", async () => {
    if (!(await confirmed(t("Delete “{name}” with its audio?", { name: job.title }), t("Delete")))) return;
    player.stop();
    await ask(`${JOBS}/${encodeURIComponent(job.id)}`, { method: "DELETE" }).catch((error) => tell(trouble, explain(error)));
    look();
  });
  return { row, show: (/** @type {Job} */ now) => {
    job = now;
    player.complete = job.status === "done";
    bar.value = job.characters_spoken / job.characters;
    bar.hidden = job.status === "done" || job.status === "failed";
    write(told, words(job));
    load.hidden = job.status !== "done";
    hear.disabled = job.audio_seconds === 0;
    const heard = job.chapters.filter(({ start_s: start }) => start !== null);
    for (const { number, title, start_s: start } of heard.slice(from.options.length))
      from.append(element("option", { value: String(start) }, title || t("Chapter {number}", { number })));
    from.hidden = from.options.length < 2;
  } };
}

/** @param {Job} job */
function words(job) {
  const length = clock(job.audio_seconds);
  if (job.status === "failed") return t("Failed: {said}", { said: job.error?.message ?? "" });
  if (job.status === "done") return t("Finished, {length} long.", { length });
  if (job.status === "queued") return t("Waiting for its turn.");
  if (job.status === "writing") return t("Writing the file.");
  const share = Math.floor(100 * job.characters_spoken / job.characters);
  const left = job.seconds_left === null ? "" : ` ${t("About {left} left.", { left: clock(job.seconds_left) })}`;
  return t("Chapter {chapter}, {share} %, {length} can be heard.", { chapter: job.chapter ?? 1, share, length }) + left;
}

/** @param {Job} job */
async function download(job) {
  const address = `${JOBS}/${encodeURIComponent(job.id)}/audio`, name = `${job.title}.${job.response_format}`;
  // A link cannot send a key. Without a key, the link lets the browser save the file while it arrives.
  if (!knownKey()) return element("a", { href: address, download: name }).click();
  try {
    save(await (await ask(address)).blob(), name);
  } catch (error) {
    tell(trouble, explain(error));
  }
}

/** @param {File} chosen */
async function open(chosen) {
  file = null;
  begin.disabled = true;
  found.hidden = true;
  const body = new FormData();
  body.append("list", "true");
  body.append("file", chosen);
  try {
    const listed = await (await ask(JOBS, { method: "POST", body })).json();
    byId("found-title", HTMLElement).textContent = [listed.title, listed.author].filter(Boolean).join(", ");
    chapters.replaceChildren(...listed.chapters.map((/** @type {Chapter} */ one) =>
      element("label", { className: "tick" }, element("input", { type: "checkbox", checked: true, value: String(one.number) }),
        element("span", {}, one.title || t("Chapter {number}", { number: one.number }), " ",
          element("span", { className: "hint" }, t("{count} characters, about {length}",
            { count: one.characters.toLocaleString(locale), length: clock(one.estimated_seconds) }))))));
    all.checked = true;
    file = chosen;
    found.hidden = begin.disabled = false;
    tell(makeTrouble, "");
  } catch (error) {
    tell(makeTrouble, explain(error));
  }
  begin.disabled = file === null;
}

function addPerson() {
  const number = cast.children.length + 1;
  const name = element("input", { type: "text", maxLength: 64, placeholder: "Anna", "aria-label": t("Person {number}", { number }) });
  const voice = element("select", { "aria-label": t("Voice of person {number}", { number }) },
    ...voices.map((one) => element("option", { value: one }, one)));
  cast.append(element("div", { className: "pair" }, name, voice));
  name.focus();
}

/** @returns {Record<string, string>} */
function people() {
  const pairs = [...cast.children].map((row) => [...row.querySelectorAll("input, select")]
    .map((field) => /** @type {HTMLInputElement | HTMLSelectElement} */ (field).value.trim()));
  return Object.fromEntries(pairs.filter(([name]) => name));
}

async function make() {
  if (file === null) return;
  const boxes = [...chapters.querySelectorAll("input")];
  const chosen = boxes.filter(({ checked }) => checked).map(({ value }) => value);
  if (chosen.length === 0) return tell(makeTrouble, t("Choose a chapter."));
  const body = new FormData();
  if (chosen.length < boxes.length) body.append("chapters", chosen.join(","));
  if (narrator.value) body.append("voice", narrator.value);
  body.append("cast", JSON.stringify(people()));
  body.append("response_format", byId("form", HTMLSelectElement).value);
  for (const name of ["footnotes", "tables"])
    body.append(name, byId(name, HTMLInputElement).checked ? "speak" : "skip");
  body.append("file", file);
  begin.disabled = true;
  try {
    await ask(JOBS, { method: "POST", body });
    tell(makeTrouble, "");
  } catch (error) {
    tell(makeTrouble, explain(error));
  }
  begin.disabled = false;
  await look();
}

book.addEventListener("change", () => book.files?.[0] && open(book.files[0]));
all.addEventListener("change", () => chapters.querySelectorAll("input").forEach((box) => (box.checked = all.checked)));
byId("add-person", HTMLButtonElement).addEventListener("click", addPerson);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  make();
});
form.addEventListener("dragover", (event) => {
  event.preventDefault();
  form.classList.add("dropping");
});
form.addEventListener("dragleave", () => form.classList.remove("dropping"));
form.addEventListener("drop", (event) => {
  event.preventDefault();
  form.classList.remove("dropping");
  const dropped = event.dataTransfer?.files[0];
  if (dropped) open(dropped);
});
document.addEventListener(KEY_CHANGED, load);

load();
