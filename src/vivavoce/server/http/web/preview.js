/** Plays a sentence in a voice, for one voice at a time. */

import { t } from "./i18n.js";
import { NOTHING } from "./speech.js";
import { Utterance } from "./utterance.js";
import { markCard, sounds } from "./voice-picker.js";

/** Plays the voices of the cards of one page. */
export class Preview {
  /**
   * @param {() => import("./utterance.js").Model} model
   * @param {(words: string, trouble: string) => void} tell Called with the state in words, and what is wrong.
   */
  constructor(model, tell) {
    this.model = model;
    this.tell = tell;
    /** @type {Utterance | null} */
    this.utterance = null;
  }

  hush() {
    this.utterance?.stop();
  }

  /**
   * Speak a sentence in a voice, or stop the sentence of this card.
   * @param {string} voice
   * @param {HTMLElement} card
   * @param {string} text
   */
  async toggle(voice, card, text) {
    if (sounds(card)) {
      this.hush();
      return;
    }
    const before = this.utterance;
    const mine = new Utterance({ ...NOTHING, text, voice }, this.model(), () => {
      markCard(card, mine.state);
      if (mine !== this.utterance) return;
      const doing = mine.state === "playing" ? "Listening to {voice} …" : "Waiting for {voice} …";
      this.tell(mine.silent ? "" : t(doing, { voice }), mine.trouble);
    });
    this.utterance = mine;
    before?.player.free();
    mine.changed();
    await mine.run(() => {});
  }
}
