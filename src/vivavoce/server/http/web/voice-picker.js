/** Voices to choose from, each with a button that plays a sentence in the voice. */

import { byId, element } from "./dom.js";
import { t } from "./i18n.js";

/**
 * @typedef {object} Voice
 * @property {string} name
 * @property {"built_in" | "stored" | "alias"} kind
 * @property {boolean} public
 * @property {string} description
 * @property {string} transcript
 * @property {boolean} has_prompt
 * @property {string} [stands_for] The voice that speaks for an alias.
 */

/** From this number of voices on, there is a field to search for one. */
export const MANY = 8;

/**
 * Describe a voice in words.
 * @param {Voice} voice
 * @param {boolean} isKeyed Whether the page has an API key, so that voices have owners.
 * @returns {string}
 */
export function about({ kind, public: isPublic, description, has_prompt: hasPrompt }, isKeyed) {
  const told = [description && t(description), t(kind === "built_in" ? "built in" : "added")];
  if (isKeyed && kind !== "built_in") told.push(t(isPublic ? "for everyone" : "yours alone"));
  if (!hasPrompt && kind !== "built_in") told.push(t("sound only"));
  return told.filter(Boolean).join(" · ");
}

/** The fieldset #voice. */
export class VoicePicker {
  /**
   * @param {() => void} changed Called when another voice is chosen.
   * @param {(name: string, card: HTMLElement) => void} listen
   */
  constructor(changed, listen) {
    this.root = byId("voice", HTMLFieldSetElement);
    this.listen = listen;
    this.find = element("input", { type: "search", hidden: true, "aria-label": t("Find a voice"),
      placeholder: t("Find a voice") });
    this.list = element("div", { className: "cards" });
    this.own = this.radio("");
    this.root.append(this.find, this.list, element("div", { className: "voice" }, element("label", {},
      element("span", {}, element("strong", {}, t("Your own recording"))), this.own)));
    this.root.addEventListener("change", changed);
    this.find.addEventListener("input", () => this.filter());
    /** @type {Voice[]} */
    this.voices = [];
  }

  /** @param {string} value */
  radio(value) {
    return element("input", { type: "radio", name: "voice", value });
  }

  /** The name of the chosen voice, "" for the model's first voice or a recording. */
  get value() {
    return /** @type {HTMLInputElement | null} */ (this.root.querySelector("input:checked"))?.value ?? "";
  }

  /** @param {string} name */
  choose(name) {
    for (const radio of this.list.querySelectorAll("input")) radio.checked = radio.value === name;
  }

  /**
   * @param {Voice[]} voices
   * @param {string | null} wanted
   * @param {boolean} isKeyed
   */
  offer(voices, wanted, isKeyed) {
    const chosen = [wanted, this.value, voices[0]?.name].find((name) => voices.some((voice) => voice.name === name));
    this.voices = voices;
    this.find.hidden = voices.length < MANY;
    this.list.replaceChildren(...voices.map((voice) => this.card(voice, isKeyed)));
    if (!this.own.checked && chosen !== undefined) this.choose(chosen);
  }

  /**
   * @param {Voice} voice
   * @param {boolean} isKeyed
   */
  card(voice, isKeyed) {
    const hear = listenButton();
    const card = element("div", { className: "voice", "data-voice": voice.name }, hear,
      element("label", {}, element("span", {}, element("strong", {}, voice.name),
        element("span", { className: "hint" }, about(voice, isKeyed))), this.radio(voice.name)));
    hear.addEventListener("click", () => this.listen(voice.name, card));
    markCard(card, "idle");
    return card;
  }

  filter() {
    const wanted = this.find.value.trim().toLowerCase();
    for (const card of this.list.children)
      if (card instanceof HTMLElement) card.hidden = !card.textContent?.toLowerCase().includes(wanted);
  }
}

/** Make the round button that plays a sentence in a voice. */
export function listenButton() {
  return element("button", { type: "button", className: "round listen" });
}

/**
 * Show the state of a voice's sentence.
 * @param {HTMLElement} card
 * @param {import("./utterance.js").State} how
 */
export function markCard(card, how) {
  card.dataset.state = how;
  const button = /** @type {HTMLButtonElement} */ (card.querySelector(".listen"));
  const name = card.dataset.voice ?? "";
  button.setAttribute("aria-label", sounds(card) ? t("Stop {name}", { name }) : t("Listen to {name}", { name }));
}

/** @param {HTMLElement} card */
export function sounds({ dataset: { state } }) {
  return state === "waiting" || state === "playing" || state === "paused";
}
