/** English and Chinese: English is what the pages hold, the dictionary is zh.js. */

import { ZH } from "./zh.js";

const PLACE = "vivavoce.language";

/** The reader's choice, or else the browser's language. */
export const chinese = (localStorage.getItem(PLACE) ?? navigator.language).startsWith("zh");

/** For numbers and dates. */
export const locale = chinese ? "zh-CN" : "en";

/**
 * Words in the reader's language.
 * @param {string} english With {names} of values.
 * @param {Record<string, string | number>} [values]
 * @returns {string}
 */
export function t(english, values = {}) {
  const words = (chinese && ZH[english]) || english;
  return words.replace(/\{(\w+)\}/g, (_, name) => String(values[name] ?? ""));
}

/** Translate what the document holds. */
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
