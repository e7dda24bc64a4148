/** The form of the page that speaks: text, voice and manner. */

import { byId, element, write } from "./dom.js";
import { characters } from "./highlight.js";
import { Reference } from "./reference.js";

/** Characters of one text; the server takes no more. */
const MOST_CHARACTERS = 20_000;
const MOST = MOST_CHARACTERS.toLocaleString("en");
const DRAFT = "vivavoce.draft";

/** @typedef {{name: string, kind: string, public: boolean, description: string}} Voice */

/** Reads and writes the form's fields; keeps the text while the tab visits other pages. */
export class WishForm {
  constructor() {
    this.text = byId("text", HTMLTextAreaElement);
    this.voice = byId("voice", HTMLSelectElement);
    this.speed = byId("speed", HTMLInputElement);
    this.seed = byId("seed", HTMLInputElement);
    this.instructions = byId("instructions", HTMLTextAreaElement);
    this.policy = byId("policy", HTMLSelectElement);
    this.language = byId("language", HTMLSelectElement);
    this.reference = new Reference();
    this.ownRecording = element("option", { value: "" }, "A recording of your own …");
    /** @type {Map<string, Voice>} */
    this.voices = new Map();
    this.voice.append(this.ownRecording);
    this.text.value = sessionStorage.getItem(DRAFT) ?? "";
    this.text.addEventListener("input", () => this.textChanged());
    this.speed.addEventListener("input", () => this.speedChanged());
    this.voice.addEventListener("change", () => this.voiceChanged());
    this.textChanged();
    this.speedChanged();
    this.voiceChanged();
  }

  textChanged() {
    const count = characters(this.text.value);
    const shown = byId("count", HTMLOutputElement);
    shown.value = `${count.toLocaleString("en")} / ${MOST}`;
    shown.classList.toggle("over", count > MOST_CHARACTERS);
    sessionStorage.setItem(DRAFT, this.text.value);
  }

  speedChanged() {
    byId("speed-shown", HTMLOutputElement).value = `${Number(this.speed.value).toFixed(2)} ×`;
  }

  voiceChanged() {
    byId("reference", HTMLFieldSetElement).hidden = !this.ownRecording.selected;
    write(byId("voice-about", HTMLElement), this.voices.get(this.voice.value)?.description ?? "");
  }

  /**
   * Offer these voices.
   * @param {Voice[]} voices
   * @param {string | null} wanted The one to choose if it is among them.
   */
  offer(voices, wanted) {
    if (voices.length === 0) return;
    const own = this.ownRecording.selected;
    this.voices = new Map(voices.map((voice) => [voice.name, voice]));
    const group = (/** @type {string} */ label, /** @type {(voice: Voice) => boolean} */ belongs) => {
      const options = voices.filter(belongs).map(({ name }) => element("option", { value: name }, name));
      return options.length ? [element("optgroup", { label }, ...options)] : [];
    };
    this.voice.replaceChildren(
      ...group("Built in", (voice) => voice.kind === "built_in"),
      ...group("Stored", (voice) => voice.kind !== "built_in" && voice.public),
      ...group("Yours", (voice) => voice.kind !== "built_in" && !voice.public),
      this.ownRecording);
    if (own) this.ownRecording.selected = true;
    else if (wanted !== null && this.voices.has(wanted)) this.voice.value = wanted;
    else this.voice.selectedIndex = 0;
    this.voiceChanged();
  }

  /**
   * What keeps the form from being sent, and where; null if nothing does.
   * @returns {{message: string, where: HTMLElement} | null}
   */
  complaint() {
    const count = characters(this.text.value);
    if (!this.text.value.trim()) return { message: "There is no text yet: write at least one word.", where: this.text };
    if (count > MOST_CHARACTERS) {
      const message = `The text has ${count.toLocaleString("en")} characters; ${MOST} can be spoken at once. Split it.`;
      return { message, where: this.text };
    }
    if (this.ownRecording.selected && !this.reference.recording)
      return { message: "Record your voice or choose a file first.", where: this.reference.button };
    if (!this.seed.checkValidity() || this.seed.value === "")
      return { message: "The seed must be a whole number from 0 to 9007199254740992.", where: this.seed };
    return null;
  }

  /** @returns {import("./speech.js").Wish} */
  wish() {
    const own = this.ownRecording.selected;
    return {
      text: this.text.value,
      voice: own ? "" : this.voice.value,
      reference: own ? this.reference.recording : null,
      transcript: own ? this.reference.transcript : "",
      speed: Number(this.speed.value),
      seed: Number(this.seed.value),
      instructions: this.instructions.value.trim(),
      policy: this.policy.value,
      language: this.language.value,
    };
  }

  /** @param {import("./speech.js").Wish} wish */
  fill(wish) {
    this.text.value = wish.text;
    this.speed.value = String(wish.speed);
    this.seed.value = String(wish.seed);
    this.instructions.value = wish.instructions;
    this.policy.value = wish.policy;
    this.language.value = wish.language;
    if (wish.reference) {
      this.ownRecording.selected = true;
      this.reference.clear();
      this.reference.take(wish.reference);
      this.reference.words.value = wish.transcript;
    } else if (this.voices.has(wish.voice)) this.voice.value = wish.voice;
    // Not only this form follows the text.
    this.text.dispatchEvent(new Event("input"));
    this.speedChanged();
    this.voiceChanged();
    this.text.focus();
  }
}
