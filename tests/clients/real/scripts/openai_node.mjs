// OpenAI's package for Node.
import { writeFile } from "node:fs/promises";
import OpenAI from "openai";
import { call, SERVER, TEXT, VOICE } from "./telling.mjs";

const client = new OpenAI({ baseURL: `${SERVER}/v1`, apiKey: "none" });
const asked = { model: "gpt-4o-mini-tts", voice: VOICE, input: TEXT };

await call("models.list", {}, async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  if (!models.includes("mini")) throw new Error(models.join());
});
for (const kind of ["mp3", "opus", "aac", "flac", "wav", "pcm"]) {
  await call(`speech.create ${kind}`, { suffix: `.${kind}`, rate: kind === "opus" ? 48000 : 24000 }, async (file) => {
    const answer = await client.audio.speech.create({ ...asked, response_format: kind });
    await writeFile(file, Buffer.from(await answer.arrayBuffer()));
  });
}
await call("speech.create body as a stream", { suffix: ".mp3", rate: 24000 }, async (file) => {
  const answer = await client.audio.speech.create({ ...asked, voice: "alloy" });
  await writeFile(file, answer.body);
});
