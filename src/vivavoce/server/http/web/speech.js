/** A request for speech: its body, and the events of its answer. */

import { ApiError, ask, isAbort } from "./api.js";
import { t } from "./i18n.js";

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
 * @property {string} language
 * @property {string} [reading]
 */

/**
 * How a stream ended, as the server reports it.
 * @typedef {{finish_reason: string, request_id?: string, error?: {code: string, message: string} | null}} Verdict
 */

/**
 * Characters are counted as Unicode code points.
 * @typedef {{kind: "segment", start: number, end: number, at: number}} SegmentEvent
 * @typedef {{kind: "words", words: {start: number, end: number, at: number}[]}} WordsEvent
 * @typedef {{kind: "audio", bytes: Uint8Array<ArrayBuffer>}} AudioEvent
 * @typedef {{kind: "verdict", verdict: Verdict}} VerdictEvent
 */

/** @type {Wish} */
export const NOTHING = {
  text: "", voice: "", reference: null, transcript: "", speed: 1, seed: 0, instructions: "", language: "", reading: "",
};

/**
 * The fields of a request, without its recording.
 * @param {Wish} wish
 * @param {Record<string, string>} form Model and format.
 * @returns {Record<string, string | number>}
 */
export function fieldsOf(wish, form) {
  /** @type {Record<string, string | number>} */
  const fields = { ...form, input: wish.text, speed: wish.speed, seed: wish.seed };
  if (wish.instructions) fields.instructions = wish.instructions;
  if (wish.language) fields.language = wish.language;
  if (wish.reading) fields.reading = wish.reading;
  if (!wish.reference && wish.voice) fields.voice = wish.voice;
  if (wish.reference && wish.transcript) fields.prompt_text = wish.transcript;
  return fields;
}

/**
 * @param {Wish} wish
 * @param {import("./utterance.js").Model} model
 * @returns {RequestInit}
 */
function request(wish, { name, rate }) {
  const form = { model: name, response_format: "pcm", stream_format: "sse", word_times: "true" };
  const fields = { ...fieldsOf(wish, form), sample_rate: rate };
  if (!wish.reference)
    return { method: "POST", body: JSON.stringify(fields), headers: { "content-type": "application/json" } };
  const body = new FormData();
  for (const [name, value] of Object.entries(fields)) body.append(name, String(value));
  body.append("prompt_audio", wish.reference, "reference");
  return { method: "POST", body };
}

/**
 * Ask the server to speak, and yield its events as they arrive; the last event is the verdict.
 * @param {Wish} wish
 * @param {import("./utterance.js").Model} model
 * @param {string} id The id that the request gets.
 * @param {AbortSignal} signal If it is aborted, the server stops speaking.
 * @returns {AsyncGenerator<SegmentEvent | WordsEvent | AudioEvent | VerdictEvent, void>}
 * @throws {ApiError} The request was refused, or (code "cut") its answer broke off without a verdict.
 */
export async function* speak(wish, model, id, signal) {
  const { headers, ...asked } = request(wish, model);
  const answer = await ask("v1/audio/speech", { ...asked, headers: { ...headers, "x-request-id": id }, signal });
  try {
    for await (const event of messages(answer)) {
      if (event.type === "speech.audio.delta") yield { kind: "audio", bytes: fromBase64(event.audio) };
      else if (event.type === "speech.segment" && Number.isInteger(event.start_character))
        yield { kind: "segment", start: event.start_character, end: event.end_character, at: event.start };
      else if (event.type === "speech.words" && !event.estimated) {
        /** @param {{start_character: number, end_character: number, start: number}} word */
        const timed = (word) => ({ start: word.start_character, end: word.end_character, at: word.start });
        yield { kind: "words", words: event.words.map(timed) };
      } else if (event.type === "speech.audio.done") {
        yield { kind: "verdict", verdict: event.verdict ?? { finish_reason: "stop" } };
        return;
      }
    }
  } catch (error) {
    // A connection that breaks in the middle is a TypeError in every browser.
    if (isAbort(error) || !(error instanceof TypeError)) throw error;
  }
  throw new ApiError(t("The connection ended before the speech did."), { code: "cut" });
}

/**
 * Make a WAV file of a take; the server makes the header, which says that the speech is synthetic.
 * @param {import("./pcm.js").Take} take
 * @returns {Promise<Blob>}
 */
export async function wavOf(take) {
  const header = await (await ask(`web/wav?rate=${take.rate}&samples=${take.length}`)).blob();
  return new Blob([header, take.cut(0, take.length)], { type: "audio/wav" });
}

/** Seconds of audio that one request sends for an MP3: the server accepts 32 MB by default. */
const MP3_PART_S = 600;

/**
 * Make an MP3 of a take. Browsers cannot encode MP3, so the server encodes the samples, without speaking again.
 * @param {import("./pcm.js").Take} take
 * @param {SegmentEvent[]} segments A long take is divided where a segment begins, as each join adds a short silence.
 * @returns {Promise<Blob>}
 */
export async function mp3Of(take, segments) {
  const parts = [];
  for (let start = 0; start < take.length; ) {
    const most = start + MP3_PART_S * take.rate;
    const cut = segments.map(({ at }) => Math.round(at * take.rate)).findLast((at) => at > start && at <= most);
    const end = most >= take.length ? take.length : cut ?? most;
    const body = take.cut(start, end);
    parts.push(await (await ask(`web/mp3?rate=${take.rate}&first=${start === 0}`, { method: "POST", body })).blob());
    start = end;
  }
  return new Blob(parts, { type: "audio/mpeg" });
}

/**
 * Yield the JSON messages of a stream of server-sent events.
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
        // Every event is one line of data; comments, event names and blank lines are skipped.
        const data = line.startsWith("data:") ? line.slice(5).trim() : "";
        if (data.startsWith("{")) yield JSON.parse(data);
      }
    }
  } finally {
    // If the caller stops before the end, the rest of the answer is not needed.
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
