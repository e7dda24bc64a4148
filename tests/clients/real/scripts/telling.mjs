// How a client's script in JavaScript says what it did: as telling.py does.
import { join } from "node:path";

export const { TEXT, VOICE, URL: SERVER, OUT } = process.env;
let number = 0;

// One call of the client. work: takes the file for its audio; a call that gives none has no suffix.
export async function call(what, { suffix = "", rate = null, speed = 1, words = true }, work) {
  const file = join(OUT, `${++number}${suffix}`);
  const began = performance.now();
  const told = { call: what, rate, speed, words };
  try {
    await work(file);
    told.file = suffix ? file : null;
  } catch (error) {
    told.error = `${error.name}: ${error.message}`;
  }
  console.log(JSON.stringify({ ...told, seconds: (performance.now() - began) / 1000 }));
}
