/** One request for speech: its body, and the events of its answer. */

import { ApiError, ask, isAbort } from "./api.js";

/**
 * What is to be spoken and how; "" and null leave the choice to the server.
 * @typedef {object} Wish
 * @property {string} text
 * @property {string} voice A name.
 * @property {Blob | null} reference A recording to speak like, instead of a named voice.
 * @property {string} transcript What the recording says.
 * @property {number} speed
 * @property {number} seed
 * @property {string} instructions
 * @property {string} policy Of the chunks.
 * @property {string} language
 */

/**
 * How a stream ended, by the server's account.
 * @typedef {{finish_reason: string, request_id?: string, error?: {code: string, message: string} | null}} Verdict
 */

/**
 * Characters are counted as Unicode code points.
 * @typedef {{kind: "segment", start: number, end: number, at: number}} SegmentEvent
 * @typedef {{kind: "audio", bytes: Uint8Array<ArrayBuffer>}} AudioEvent
 * @typedef {{kind: "verdict", verdict: Verdict}} VerdictEvent
 */

/** @type {Wish} */
export const NOTHING = {
  text: "", voice: "", reference: null, transcript: "", speed: 1, seed: 0, instructions: "", policy: "", language: "",
};

/**
 * @param {Wish} wish
 * @param {Record<string, string>} form Format and manner of the answer.
 * @returns {RequestInit}
 */
function request(wish, form) {
  /** @type {Record<string, string | number>} */
  const fields = { ...form, input: wish.text, speed: wish.speed, seed: wish.seed };
  if (wish.instructions) fields.instructions = wish.instructions;
  if (wish.policy) fields.chunk_policy = wish.policy;
  if (wish.language) fields.language = wish.language;
  if (!wish.reference) {
    if (wish.voice) fields.voice = wish.voice;
    return { method: "POST", body: JSON.stringify(fields), headers: { "content-type": "application/json" } };
  }
  if (wish.transcript) fields.prompt_text = wish.transcript;
  const body = new FormData();
  for (const [name, value] of Object.entries(fields)) body.append(name, String(value));
  body.append("prompt_audio", wish.reference, "reference");
  return { method: "POST", body };
}

/**
 * Speak, and give what the server sends as it comes; the last event is the verdict.
 * @param {Wish} wish
 * @param {string} model
 * @param {AbortSignal} signal Aborted, the server stops speaking.
 * @returns {AsyncGenerator<SegmentEvent | AudioEvent | VerdictEvent, void>}
 * @throws {ApiError} Refused, or (code "cut") broken off without a verdict.
 */
export async function* speak(wish, model, signal) {
  const asked = request(wish, { model, response_format: "pcm", stream_format: "sse" });
  const answer = await ask("v1/audio/speech", { ...asked, signal });
  try {
    for await (const event of messages(answer)) {
      if (event.type === "speech.audio.delta") yield { kind: "audio", bytes: fromBase64(event.audio) };
      else if (event.type === "speech.segment" && Number.isInteger(event.start_character))
        yield { kind: "segment", start: event.start_character, end: event.end_character, at: event.start };
      else if (event.type === "speech.audio.done") {
        yield { kind: "verdict", verdict: event.verdict ?? { finish_reason: "stop" } };
        return;
      }
    }
  } catch (error) {
    // A connection that breaks in the middle is a TypeError in every browser.
    if (isAbort(error) || !(error instanceof TypeError)) throw error;
  }
  throw new ApiError("The connection ended before the speech did.", { code: "cut" });
}

/**
 * The same speech as a whole file in another format.
 * @param {Wish} wish
 * @param {string} model
 * @param {string} format
 * @returns {Promise<Blob>}
 */
export async function speechFile(wish, model, format) {
  return (await ask("v1/audio/speech", request(wish, { model, response_format: format }))).blob();
}

/**
 * The JSON messages of a stream of server-sent events.
 * @param {Response} answer
 * @returns {AsyncGenerator<any, void>}
 */
async function* messages(answer) {
  if (!answer.body) return;
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split(/\r?\n/);
      rest = lines.pop() ?? "";
      for (const line of lines) {
        // Every event is one line of data; comments, names and blank lines carry nothing.
        const data = line.startsWith("data:") ? line.slice(5).trim() : "";
        if (data.startsWith("{")) yield JSON.parse(data);
      }
    }
  } finally {
    // Who leaves before the end wants no more of it.
    reader.cancel().catch(() => {});
  }
}

/**
 * @param {string} text
 * @returns {Uint8Array<ArrayBuffer>}
 */
function fromBase64(text) {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let place = 0; place < bytes.length; place++) bytes[place] = characters.charCodeAt(place);
  return bytes;
}
