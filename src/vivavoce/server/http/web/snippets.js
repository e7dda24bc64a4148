/** Writes a wish as a short program, which reads an API key from an environment variable. */

import { knownKey } from "./key.js";
import { fieldsOf } from "./speech.js";

/**
 * @param {import("./speech.js").Wish} wish
 * @param {string} model
 * @returns {string} A shell command.
 */
export function asCurl(wish, model) {
  const fields = fieldsOf(wish, { model, response_format: "mp3" });
  const key = knownKey() ? ["-H \"Authorization: Bearer $VIVAVOCE_API_KEY\""] : [];
  const body = wish.reference
    ? [...Object.entries(fields).map(([name, value]) => `--form-string ${quoted(`${name}=${value}`)}`),
      "-F prompt_audio=@recording.wav"]
    : ["-H 'content-type: application/json'", `-d ${quoted(JSON.stringify(fields))}`];
  return [`curl ${quoted(address("v1/audio/speech"))}`, ...key, ...body, "-o speech.mp3"].join(" \\\n  ");
}

/**
 * @param {import("./speech.js").Wish} wish
 * @param {string} model
 * @returns {string} A program with OpenAI's Python package.
 */
export function asPython(wish, model) {
  const { input, voice = "", speed, instructions, ...own } = fieldsOf(wish, { model, response_format: "mp3" });
  const { model: _, response_format: format, ...extra } = own;
  const literal = (/** @type {unknown} */ value) => JSON.stringify(value); // Python reads strings and numbers of JSON
  const more = Object.entries(extra).map(([name, value]) => `${literal(name)}: ${literal(value)}`);
  if (wish.reference)
    more.push('"prompt_audio": base64.b64encode(open("recording.wav", "rb").read()).decode()');
  return [
    knownKey() ? "import os\n" : "",
    wish.reference ? "import base64\n" : "",
    "from openai import OpenAI\n\n",
    `client = OpenAI(base_url=${literal(address("v1"))}, `,
    `api_key=${knownKey() ? 'os.environ["VIVAVOCE_API_KEY"]' : '"none"'})\n`,
    "with client.audio.speech.with_streaming_response.create(\n",
    `    model=${literal(model)},\n`,
    `    voice=${voice ? literal(voice) : "None"},\n`,
    `    input=${literal(input)},\n`,
    instructions ? `    instructions=${literal(instructions)},\n` : "",
    `    speed=${literal(speed)},\n`,
    `    response_format=${literal(format)},\n`,
    `    extra_body={${more.join(", ")}},\n`,
    ") as speech:\n",
    '    speech.stream_to_file("speech.mp3")\n',
  ].join("");
}

/** @param {string} path */
function address(path) {
  return new URL(path, document.baseURI).href;
}

/** @param {string} text */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
