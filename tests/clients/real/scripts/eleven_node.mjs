// ElevenLabs' package for JavaScript.
import { writeFile } from "node:fs/promises";
import { ElevenLabsClient } from "@elevenlabs/elevenlabs-js";
import { call, SERVER, TEXT, VOICE } from "./telling.mjs";

const client = new ElevenLabsClient({ baseUrl: SERVER, apiKey: "none" });

async function whole(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return Buffer.concat(pieces);
}

function must(holds, what) {
  if (!holds) throw new Error(what);
}

await call("voices.getAll, search, get; models.list; user.get", {}, async () => {
  must((await client.voices.getAll()).voices.some((voice) => voice.voiceId === VOICE), "getAll");
  must((await client.voices.search({ search: VOICE })).voices[0].name === VOICE, "search");
  must((await client.voices.get(VOICE)).name === VOICE, "get");
  must((await client.models.list())[0].canDoTextToSpeech, "models");
  must((await client.user.get()).subscription.characterCount === 0, "user");
});
for (const [format, rate] of [["mp3_44100_128", 44100], ["pcm_16000", 16000], ["ulaw_8000", 8000], ["wav_22050", 22050], ["opus_48000_96", 48000]]) {
  await call(`textToSpeech.convert ${format}`, { suffix: `.${format.split("_")[0]}`, rate }, async (file) => {
    await writeFile(file, await whole(await client.textToSpeech.convert(VOICE, { text: TEXT, outputFormat: format })));
  });
}
await call("textToSpeech.stream", { suffix: ".mp3", rate: 44100 }, async (file) => {
  await writeFile(file, await whole(await client.textToSpeech.stream(VOICE, { text: TEXT, modelId: "eleven_flash_v2_5" })));
});
await call("textToSpeech.convertWithTimestamps", { suffix: ".mp3", rate: 44100 }, async (file) => {
  const spoken = await client.textToSpeech.convertWithTimestamps(VOICE, { text: TEXT });
  must(spoken.alignment.characters.join("") === TEXT, "alignment");
  await writeFile(file, Buffer.from(spoken.audioBase64, "base64"));
});
await call("textToSpeech.streamWithTimestamps", { suffix: ".pcm", rate: 24000 }, async (file) => {
  const pieces = [];
  let told = "";
  for await (const piece of await client.textToSpeech.streamWithTimestamps(VOICE, { text: TEXT, outputFormat: "pcm_24000" })) {
    pieces.push(Buffer.from(piece.audioBase64, "base64"));
    told += (piece.alignment?.characters ?? []).join("");
  }
  must(told === TEXT, `alignment: ${told}`);
  await writeFile(file, Buffer.concat(pieces));
});
