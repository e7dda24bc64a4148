/** The list of texts that were spoken before. */

import { byId, confirmed, duration, element, write } from "./dom.js";
import { entries, forget, forgetAll, remember } from "./history.js";
import { locale, t } from "./i18n.js";

/** The part of the page whose ids begin with "history". */
export class HistoryList {
  /**
   * @param {(wish: import("./speech.js").Wish) => void} useAgain
   * @param {(entry: import("./history.js").Entry) => void} play
   */
  constructor(useAgain, play) {
    this.useAgain = useAgain;
    this.play = play;
    this.list = byId("history", HTMLUListElement);
    this.title = byId("history-title", HTMLElement);
    /** @type {Map<number, HTMLLIElement>} The shown items, by the ids of their entries. */
    this.items = new Map();
    this.clearing = byId("history-clear", HTMLButtonElement);
    this.note = byId("history-note", HTMLElement);
    this.clearing.addEventListener("click", async () => {
      if (await confirmed(t("Delete all texts and audio kept in this browser?"), t("Delete all")))
        await this.remove(forgetAll);
    });
    this.attempt(async () => {});
  }

  /** @param {import("./history.js").Entry} entry */
  add(entry) {
    return this.attempt(() => remember(entry));
  }

  /**
   * Change the history and show it; say so if the browser cannot store it (private window, full disk).
   * @param {() => Promise<void>} change
   */
  async attempt(change) {
    try {
      await change();
      this.show(await entries());
    } catch {
      write(this.note, t("This browser keeps no history here: it has no room, or its private mode forbids it."));
    }
  }

  /**
   * Delete entries, and move the focus to the title, because the clicked button disappears.
   * @param {() => Promise<void>} change
   */
  async remove(change) {
    await this.attempt(change);
    this.title.focus();
  }

  /**
   * Show these entries. Items that are shown already are not made again, because one may have the focus.
   * @param {import("./history.js").Entry[]} kept The youngest first.
   */
  show(kept) {
    const ids = new Set(kept.map(({ id }) => id));
    for (const [id, item] of this.items) {
      if (ids.has(id)) continue;
      item.remove();
      this.items.delete(id);
    }
    for (const entry of [...kept].reverse()) {
      const id = /** @type {number} */ (entry.id);
      if (this.items.has(id)) continue;
      this.items.set(id, this.item(entry));
      this.list.prepend(/** @type {HTMLLIElement} */ (this.items.get(id)));
    }
    this.clearing.hidden = kept.length === 0;
  }

  /** @param {import("./history.js").Entry} entry */
  item(entry) {
    const { wish, when } = entry;
    const text = wish.text.trim();
    const excerpt = text.length > 160 ? `${text.slice(0, 160)} …` : text;
    const button = (/** @type {string} */ label, /** @type {() => void} */ act) => {
      const made = element("button", { type: "button", "aria-label": `${label}: ${excerpt.slice(0, 40)}` }, label);
      made.addEventListener("click", act);
      return made;
    };
    const about = [
      new Date(when).toLocaleString(locale, { dateStyle: "medium", timeStyle: "short" }),
      wish.reference ? t("own recording") : wish.voice || t("first voice"),
      duration(entry.seconds),
      t(entry.verdict),
    ].join(" · ");
    return element("li", {},
      element("p", { className: "excerpt" }, excerpt),
      element("p", { className: "hint" }, about),
      element("div", { className: "row wrap" },
        button(t("Play"), () => this.play(entry)),
        button(t("Use again"), () => this.useAgain(wish)),
        button(t("Delete"), () => this.remove(() => forget(/** @type {number} */ (entry.id))))));
  }
}

/**
 * @param {import("./speech.js").Wish} wish
 * @param {number} when Milliseconds since 1970.
 * @param {string} format
 * @returns {string}
 */
export function fileName(wish, when, format) {
  const time = new Date(when).toISOString().slice(0, 19).replaceAll(":", "-");
  return `${[wish.reference ? "recording" : wish.voice || "voice", time].join("_")}.${format}`;
}
