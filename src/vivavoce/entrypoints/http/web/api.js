/** Requests to the server: the API key, errors in the server's own words, the way out of them. */

import { askForKey, knownKey } from "./key.js";

/** What a server, or the way to it, refused; its message can be shown as it is. */
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
}

/**
 * A request's answer if it is good. A 401 asks for an API key and tries again, unless `silent`.
 * @param {string} path Relative, so that the pages work below any prefix.
 * @param {RequestInit & {silent?: boolean}} [options]
 * @returns {Promise<Response>}
 * @throws {ApiError} Also where the server cannot be reached; an aborted request throws an AbortError.
 */
export async function ask(path, { silent = false, ...options } = {}) {
  for (;;) {
    const key = knownKey();
    const answer = await send(path, key, options);
    if (answer.ok) return answer;
    const refused = await errorOf(answer);
    if (answer.status !== 401 || silent) throw refused;
    // The key may have changed since this request was sent: then the new one is tried before anyone is asked.
    if (knownKey() === key && (await askForKey(key ? refused.message : "")) === null) throw refused;
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
    throw new ApiError("The server cannot be reached.", { code: "unreachable" });
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
  // A proxy in between answers in its own words, or in none.
  if (typeof error?.message !== "string") return new ApiError(`The server answered ${answer.status}.`, more);
  return new ApiError(error.message, { ...more, code: String(error.code ?? "") });
}

/**
 * @param {unknown} error
 * @returns {boolean}
 */
export function isAbort(error) {
  return error instanceof DOMException && error.name === "AbortError";
}

/**
 * An error in one paragraph: what happened, and what to do where the message does not say it.
 * @param {unknown} error
 * @returns {string}
 */
export function explain(error) {
  if (!(error instanceof ApiError)) return `The page failed: ${error instanceof Error ? error.message : error}`;
  const said = error.message;
  if (error.code === "unreachable")
    return `${said} See whether it runs and whether this device is online; then try again.`;
  if (error.code === "cut") return `${said} What arrived is kept; speak again for all of it.`;
  // Most messages end with the way out themselves.
  if (Number.isFinite(error.retryAfter) && !/again/.test(said))
    return `${said}: try again in ${Math.ceil(error.retryAfter)} s.`;
  return error.status >= 500 && error.requestId ? `${said} (request ${error.requestId})` : said;
}
