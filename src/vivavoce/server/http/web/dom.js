/** Small helpers around the document. */

import { t } from "./i18n.js";

/**
 * Return the element with this id. Throws if the page lacks it, or if it has another type.
 * @template {Element} T
 * @param {string} id
 * @param {new () => T} type
 * @returns {T}
 */
export function byId(id, type) {
  const found = document.getElementById(id);
  if (!(found instanceof type)) throw new Error(`the page lacks #${id}`);
  return found;
}

/**
 * Make an element. Names that it has as properties are set as such, others as attributes; text is not read as HTML.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [properties]
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) /** @type {any} */ (made)[name] = value;
    else made.setAttribute(name, String(value));
  }
  made.append(...children);
  return made;
}

/**
 * Show a message in an alert, or hide it for "".
 * @param {HTMLElement} box
 * @param {string} message
 */
export function tell(box, message) {
  if (box.textContent !== message) box.textContent = message;
  box.hidden = message === "";
}

/**
 * Write a text only if it changed: screen readers speak what is written to a live region.
 * @param {HTMLElement} place
 * @param {string} text
 */
export function write(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

/**
 * Ask before something is lost.
 * @param {string} question
 * @param {string} doing The confirming button's words.
 * @returns {Promise<boolean>}
 */
export function confirmed(question, doing) {
  return new Promise((resolve) => {
    const no = element("button", { type: "button" }, t("Keep"));
    const yes = element("button", { type: "button", className: "danger" }, doing);
    const box = element("dialog", { "aria-label": question }, element("p", {}, question),
      element("div", { className: "row end" }, no, yes));
    no.addEventListener("click", () => box.close());
    yes.addEventListener("click", () => box.close("yes"));
    box.addEventListener("close", () => {
      box.remove();
      resolve(box.returnValue === "yes");
    });
    document.body.append(box);
    box.showModal();
  });
}

/**
 * Let the browser save data as a file.
 * @param {Blob} data
 * @param {string} name
 */
export function save(data, name) {
  const address = URL.createObjectURL(data);
  element("a", { href: address, download: name }).click();
  // By then the browser has opened the address; without this, the data would stay in memory.
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

/**
 * Copy a text to the clipboard.
 * @param {string} text
 */
export async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // `navigator.clipboard` exists on secure origins only; this older way works on all origins.
  const area = element("textarea", { value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/**
 * @param {number} seconds
 * @returns {string} Such as "350 ms", "2.50 s" or "1 min 5 s".
 */
export function duration(seconds) {
  if (seconds < 1) return t("{n} ms", { n: Math.round(seconds * 1000) });
  if (seconds < 60) return t("{n} s", { n: seconds.toFixed(seconds < 10 ? 2 : 1) });
  const whole = Math.round(seconds);
  return t("{minutes} min {seconds} s", { minutes: Math.floor(whole / 60), seconds: whole % 60 });
}

/**
 * @param {number} seconds
 * @returns {string} Minutes and seconds, such as "1:05".
 */
export function clock(seconds) {
  const whole = Math.floor(seconds + 0.001);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}
