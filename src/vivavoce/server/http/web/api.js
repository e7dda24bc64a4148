/** Requests to the server, with the API key, and explanations of their errors for people. */

import { t } from "./i18n.js";
import { askForKey, knownKey } from "./key.js";

/** The error of a request that the server refused, or that did not reach it; `explain` describes it for people. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {{status?: number, code?: string, retryAfter?: number, requestId?: string}} [more]
   */
  constructor(message, { status = 0, code = "", retryAfter = NaN, requestId = "" } = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
    this.requestId = requestId;
  }

  /** Whether to send the request again after `retryAfter` seconds; after a stop of the engine (503) it is not. */
  get isBusy() {
    return this.status === 429 && Number.isFinite(this.retryAfter);
  }
}

/**
 * Send a request and return its answer. After a 401, ask for an API key and send it again, unless `silent`.
 * @param {string} path Relative, so that the pages work below any prefix.
 * @param {RequestInit & {silent?: boolean}} [options]
 * @returns {Promise<Response>}
 * @throws {ApiError} The server refuses, or cannot be reached; an aborted request throws an AbortError.
 */
export async function ask(path, { silent = false, ...options } = {}) {
  for (;;) {
    const key = knownKey();
    const answer = await send(path, key, options);
    if (answer.ok) return answer;
    const refused = await errorOf(answer);
    if (answer.status !== 401 || silent) throw refused;
    // If the key has changed since this request was sent, the new key is tried before the user is asked.
    if (knownKey() === key && (await askForKey(key ? t("This key is not known here. See that it was copied whole.") : "")) === null) throw refused;
    if (options.signal?.aborted) throw refused;
  }
}

/**
 * @param {string} path
 * @param {string} key "" if there is none.
 * @param {RequestInit} options
 */
async function send(path, key, options) {
  const headers = new Headers(options.headers);
  if (key) headers.set("Authorization", `Bearer ${key}`);
  try {
    return await fetch(path, { ...options, headers });
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ApiError(t("The server cannot be reached."), { code: "unreachable" });
  }
}

/**
 * @param {Response} answer
 * @returns {Promise<ApiError>}
 */
async function errorOf(answer) {
  const more = {
    status: answer.status,
    retryAfter: parseFloat(answer.headers.get("retry-after") ?? ""),
    requestId: answer.headers.get("x-request-id") ?? "",
  };
  const body = await answer.json().catch(() => null);
  const error = body?.error;
  // The answer of a proxy does not have the form of the server's errors.
  if (typeof error?.message !== "string") return new ApiError(t("The server answered {status}.", { status: answer.status }), more);
  return new ApiError(error.message, { ...more, code: String(error.code ?? "") });
}

/**
 * @param {unknown} error
 * @returns {boolean}
 */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/** Explanations of the server's error codes for people; for other codes, `explain` shows the error's message. */
/** @type {Record<string, string>} */
const WORDS = {
  unauthorized: "This server answers only those who have a key.",
  forbidden: "This key may not do that.",
  voice_not_found: "There is no voice of this name any more: choose another one.",
  voice_exists: "There is a voice of this name: choose another name, or tick “Replace a voice of this name”.",
  overloaded: "The server is busy with other speech. Try again in a moment.",
  engine_stopped: "The speech engine has stopped, and starts again. Try again in a moment.",
  out_of_memory: "The server has too little memory for this: try a shorter text.",
  deadline_exceeded: "It took too long. Try again in a moment.",
};

/**
 * Explain an error in one paragraph: what happened, and what to do.
 * @param {unknown} error
 * @returns {string}
 */
export function explain(error) {
  if (!(error instanceof ApiError))
    return t("The page failed: {said}", { said: error instanceof Error ? error.message : String(error) });
  if (error.code === "unreachable")
    return `${error.message} ${t("See whether it runs and whether this device is online; then try again.")}`;
  if (error.code === "cut") return `${error.message} ${t("What arrived is kept; speak again for all of it.")}`;
  const known = WORDS[error.code];
  if (known) return t(known);
  // The message begins with the field's name in the API, which is left out because the page shows other names.
  const said = error.message.replace(/^[\w ]{1,20}: (.)/, (_, first) => first.toUpperCase());
  const told = t("{said}", { said });
  return error.status >= 500 && error.requestId ? t("{told} (request {id})", { told, id: error.requestId }) : told;
}
