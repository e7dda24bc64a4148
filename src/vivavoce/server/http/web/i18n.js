/** English and Chinese: the pages are written in English, and zh.js translates their texts. */

import { ZH } from "./zh.js";

const PLACE = "vivavoce.language";

/** Whether the pages are in Chinese: by the reader's choice, or else by the browser's language. */
export const chinese = (localStorage.getItem(PLACE) ?? navigator.language).startsWith("zh");

/** The locale for numbers and dates. */
export const locale = chinese ? "zh-CN" : "en";

/**
 * Translate a text into the reader's language.
 * @param {string} english May contain names of values in braces.
 * @param {Record<string, string | number>} [values]
 * @returns {string}
 */
export function t(english, values = {}) {
  const words = (chinese && ZH[english]) || english;
  return words.replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""));
}

/** Translate the texts and labels of the document. */
export function translatePage() {
  document.documentElement.lang = locale;
  if (!chinese) return;
  document.title = document.title.split(" · ").map((part) => t(part)).join(" · ");
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = /** @type {Text} */ (walker.currentNode);
    const english = node.data.trim().replace(/\s+/g, " ");
    if (ZH[english]) node.data = ZH[english];
  }
  for (const name of ["placeholder", "aria-label", "label", "title"])
    for (const each of document.body.querySelectorAll(`[${name}]`))
      each.setAttribute(name, t(each.getAttribute(name) ?? ""));
}

/** Show the pages in the other language. */
export function switchLanguage() {
  localStorage.setItem(PLACE, chinese ? "en" : "zh");
  location.reload();
}
