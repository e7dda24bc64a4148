/** What all pages have above: their language, the key, the way to the API's documentation. */

import { byId } from "./dom.js";
import { chinese, switchLanguage, translatePage } from "./i18n.js";
import { watchKeyButton } from "./key.js";

/** Bring it to life, and the page into the reader's language. */
export async function header() {
  translatePage();
  watchKeyButton();
  const other = byId("language", HTMLButtonElement);
  other.textContent = chinese ? "English" : "中文";
  other.lang = chinese ? "en" : "zh-CN";
  other.addEventListener("click", switchLanguage);
  // An operator may have left it out.
  const answer = await fetch("docs", { method: "HEAD" }).catch(() => null);
  byId("docs", HTMLAnchorElement).hidden = !answer?.ok;
}
