/** The API key: a dialog asks for it if the server requires one; it is kept for this tab, or longer on request. */

import { byId, element } from "./dom.js";
import { t } from "./i18n.js";

/** The event that the document gets when the key has changed. */
export const KEY_CHANGED = "vivavoce-key";

const PLACE = "vivavoce.api-key";

/** @type {Promise<string | null> | null} One dialog for all requests that were refused at once. */
let asking = null;

/** @returns {string} The key that is kept, or "". */
export function knownKey() {
  return sessionStorage.getItem(PLACE) ?? localStorage.getItem(PLACE) ?? "";
}

/**
 * @param {string} key "" deletes the kept key.
 * @param {boolean} remember Keep it beyond this tab.
 */
function keep(key, remember) {
  localStorage.removeItem(PLACE);
  sessionStorage.removeItem(PLACE);
  if (key) (remember ? localStorage : sessionStorage).setItem(PLACE, key);
  showKeyButton();
  document.dispatchEvent(new Event(KEY_CHANGED));
}

/**
 * Ask for a key; returns null if the user closes the dialog without one.
 * @param {string} refusal Why the server refused the kept key; "" without a kept key.
 * @returns {Promise<string | null>}
 */
export function askForKey(refusal) {
  asking ??= dialog(refusal).finally(() => (asking = null));
  return asking;
}

/** Let the header's key button open the dialog; the button is shown while a key is kept. */
export function watchKeyButton() {
  byId("key", HTMLButtonElement).addEventListener("click", () => askForKey(""));
  showKeyButton();
}

function showKeyButton() {
  byId("key", HTMLButtonElement).hidden = knownKey() === "";
}

/**
 * @param {string} refusal
 * @returns {Promise<string | null>}
 */
function dialog(refusal) {
  return new Promise((resolve) => {
    const input = element("input", { type: "password", id: "api-key", autocomplete: "off", required: true });
    const remember = element("input", { type: "checkbox", id: "api-key-remember" });
    const cancel = element("button", { type: "button" }, t("Cancel"));
    const forget = element("button", { type: "button", hidden: knownKey() === "" }, t("Forget the key"));
    const form = element("form", {},
      element("h2", { id: "api-key-title" }, t("API key")),
      element("p", {}, t("This server answers only those who have a key. Its operator can give you one.")),
      element("p", { className: "notice bad", role: "alert", hidden: !refusal }, refusal),
      element("div", { className: "field" }, element("label", { htmlFor: "api-key" }, t("Key")), input),
      element("label", { className: "tick" }, remember, " ", t("Remember it in this browser")),
      element("div", { className: "row end" }, forget, cancel,
        element("button", { className: "main" }, t("Use this key"))));
    const box = element("dialog", { "aria-labelledby": "api-key-title" }, form);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      keep(input.value.trim(), remember.checked);
      box.close("kept");
    });
    cancel.addEventListener("click", () => box.close());
    forget.addEventListener("click", () => {
      keep("", false);
      box.close();
    });
    box.addEventListener("close", () => {
      box.remove();
      resolve(box.returnValue === "kept" ? knownKey() : null);
    });
    document.body.append(box);
    box.showModal();
  });
}
