/** The header of all pages: the language, the API key and the link to the API's documentation. */

import { byId } from "./dom.js";
import { chinese, switchLanguage, translatePage } from "./i18n.js";
import { watchKeyButton } from "./key.js";

/** Translate the page into the reader's language, and connect the header's buttons. */
export async function header() {
  translatePage();
  watchKeyButton();
  const other = byId("language", HTMLButtonElement);
  other.textContent = chinese ? "English" : "中文";
  other.lang = chinese ? "en" : "zh-CN";
  other.addEventListener("click", switchLanguage);
  // The setting server.docs may switch the documentation off.
  const answer = await fetch("docs", { method: "HEAD" }).catch(() => null);
  byId("docs", HTMLAnchorElement).hidden = !answer?.ok;
}
