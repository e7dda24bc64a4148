// Vercel's AI SDK with its provider for OpenAI.
import { writeFile } from "node:fs/promises";
import { createOpenAI } from "@ai-sdk/openai";
import { experimental_generateSpeech as generateSpeech } from "ai";
import { call, SERVER, TEXT, VOICE } from "./telling.mjs";

const openai = createOpenAI({ baseURL: `${SERVER}/v1`, apiKey: "none" });
const asked = [
  ["its defaults", ".mp3", {}],
  ["wav, a voice of the model", ".wav", { voice: VOICE, outputFormat: "wav" }],
  ["speed 2", ".mp3", { voice: VOICE, speed: 2 }],
];
for (const [what, suffix, more] of asked) {
  await call(`generateSpeech, ${what}`, { suffix, rate: 24000, speed: more.speed ?? 1 }, async (file) => {
    const { audio } = await generateSpeech({ model: openai.speech("tts-1"), text: TEXT, ...more });
    await writeFile(file, audio.uint8Array);
  });
}
