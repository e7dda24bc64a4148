/** The form of the page that speaks: text, voice and manner. */

import { byId, element, tell } from "./dom.js";
import { characters } from "./highlight.js";
import { locale, t } from "./i18n.js";
import { knownKey } from "./key.js";
import { Reference } from "./reference.js";
import { samples } from "./samples.js";
import { VoicePicker } from "./voice-picker.js";

/** Most characters of one text that the server accepts. */
const MOST_CHARACTERS = 20_000;
const MOST = MOST_CHARACTERS.toLocaleString(locale);
const MOST_SEED = Number.MAX_SAFE_INTEGER + 1;
const MOST_FILE_BYTES = 4e6;
const DRAFT = "vivavoce.draft";

/** Reads and writes the form's fields; keeps the text while the tab visits other pages. */
export class WishForm {
  /**
   * @param {(name: string, card: HTMLElement) => void} listen Plays a sentence in a voice, or stops it.
   * @param {() => void} speak
   */
  constructor(listen, speak) {
    this.text = byId("text", HTMLTextAreaElement);
    this.speed = byId("speed", HTMLInputElement);
    this.seed = byId("seed", HTMLInputElement);
    this.instructions = byId("instructions", HTMLTextAreaElement);
    this.language = byId("language-of-numbers", HTMLSelectElement);
    this.reading = byId("reading", HTMLSelectElement);
    this.trouble = byId("trouble", HTMLElement);
    this.samples = byId("samples", HTMLElement);
    this.speak = speak;
    this.reference = new Reference();
    this.picker = new VoicePicker(() => this.voiceChanged(), listen);
    this.text.value = sessionStorage.getItem(DRAFT) ?? "";
    this.text.addEventListener("input", () => this.textChanged());
    this.speed.addEventListener("input", () => this.speedChanged());
    byId("dice", HTMLButtonElement).addEventListener("click", () => {
      this.seed.value = String(crypto.getRandomValues(new Uint32Array(1))[0] % 1_000_000);
    });
    this.takeFiles();
    this.textChanged();
    this.speedChanged();
    this.voiceChanged();
  }

  /** Let the user choose or drop a text file. */
  takeFiles() {
    const chosen = byId("text-file", HTMLInputElement);
    chosen.addEventListener("change", () => this.open(chosen.files?.[0]));
    const card = byId("text-card", HTMLElement);
    for (const kind of ["dragover", "dragleave", "drop"])
      card.addEventListener(kind, (event) => {
        const file = /** @type {DragEvent} */ (event).dataTransfer?.types.includes("Files");
        card.classList.toggle("dropping", kind === "dragover" && Boolean(file));
        if (!file) return; // dragged text, which the text area handles itself
        event.preventDefault();
        if (kind === "drop") this.open(/** @type {DragEvent} */ (event).dataTransfer?.files[0]);
      });
  }

  /** @param {File | undefined} file */
  async open(file) {
    if (!file) return;
    const bytes = file.size > MOST_FILE_BYTES ? null : await file.arrayBuffer();
    try {
      if (!bytes) throw new RangeError();
      this.setText(new TextDecoder("utf-8", { fatal: true }).decode(bytes));
      tell(this.trouble, "");
    } catch {
      tell(this.trouble, t("“{name}” is not a text, or is too long: open a file of plain text.", { name: file.name }));
    }
  }

  /** @param {string} text */
  setText(text) {
    this.text.value = text;
    // Other parts of the page listen to this event, too.
    this.text.dispatchEvent(new Event("input"));
  }

  textChanged() {
    const count = characters(this.text.value);
    const shown = byId("count", HTMLOutputElement);
    shown.value = `${count.toLocaleString(locale)} / ${MOST}`;
    shown.classList.toggle("over", count > MOST_CHARACTERS);
    sessionStorage.setItem(DRAFT, this.text.value);
  }

  speedChanged() {
    byId("speed-shown", HTMLOutputElement).value = `${Number(this.speed.value).toFixed(2)} ×`;
  }

  voiceChanged() {
    byId("reference", HTMLFieldSetElement).hidden = !this.picker.own.checked;
  }

  /**
   * Offer these voices.
   * @param {import("./voice-picker.js").Voice[]} voices
   * @param {string | null} wanted The voice to choose, if it is in the list.
   */
  offer(voices, wanted) {
    this.picker.offer(voices, wanted, knownKey() !== "");
    this.voiceChanged();
  }

  /**
   * Adapt the form to a model.
   * @param {boolean} isDemo
   * @param {boolean} followsInstructions
   */
  suit(isDemo, followsInstructions) {
    byId("instructions-field", HTMLElement).hidden = !followsInstructions;
    this.samples.replaceChildren(...samples(isDemo).map(([name, text]) => {
      const chip = element("button", { type: "button", className: "chip" }, t(name));
      chip.addEventListener("click", () => {
        this.setText(text);
        this.speak();
      });
      return chip;
    }));
  }

  /** @returns {{message: string, where: HTMLElement} | null} Why the form cannot be sent, what to focus; else null. */
  complaint() {
    const count = characters(this.text.value);
    if (!this.text.value.trim())
      return { message: t("There is no text yet: write at least one word."), where: this.text };
    if (count > MOST_CHARACTERS) {
      const values = { count: count.toLocaleString(locale), most: MOST };
      const message = t("The text has {count} characters; {most} can be spoken at once. Split it.", values);
      return { message, where: this.text };
    }
    const missing = this.picker.own.checked ? this.reference.complaint() : null;
    if (missing) return missing;
    if (!this.seed.checkValidity() || this.seed.value === "") {
      const message = t("The take must be a whole number from 0 to {most}.", { most: MOST_SEED });
      return { message, where: this.seed };
    }
    return null;
  }

  /** @returns {import("./speech.js").Wish} */
  wish() {
    const own = this.picker.own.checked;
    return {
      text: this.text.value,
      voice: own ? "" : this.picker.value,
      reference: own ? this.reference.recording : null,
      transcript: own ? this.reference.transcript : "",
      speed: Number(this.speed.value),
      seed: Number(this.seed.value),
      instructions: byId("instructions-field", HTMLElement).hidden ? "" : this.instructions.value.trim(),
      language: this.language.value,
      reading: this.reading.value,
    };
  }

  /** @param {import("./speech.js").Wish} wish */
  fill(wish) {
    this.speed.value = String(wish.speed);
    this.seed.value = String(wish.seed);
    this.instructions.value = wish.instructions;
    this.language.value = wish.language;
    this.reading.value = wish.reading ?? ""; // older entries of the history lack this field
    if (wish.reference) {
      this.picker.own.checked = true;
      this.reference.clear();
      this.reference.take(wish.reference);
      this.reference.words.value = wish.transcript;
    } else this.picker.choose(wish.voice);
    this.setText(wish.text);
    this.speedChanged();
    this.voiceChanged();
    this.text.focus();
  }
}
