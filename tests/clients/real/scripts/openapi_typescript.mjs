// Types that openapi-typescript makes from openapi.json, and a call that TypeScript checks against them.
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { call, OUT, SERVER } from "./telling.mjs";

const bin = join(dirname(fileURLToPath(import.meta.url)), "node_modules", ".bin");
const run = (name, ...given) => {
  try {
    return execFileSync(join(bin, name), given, { cwd: OUT, encoding: "utf8", stdio: "pipe" });
  } catch (error) {
    throw new Error(error.stdout + error.stderr);
  }
};

await call("generate", {}, async () => run("openapi-typescript", `${SERVER}/openapi.json`, "-o", "api.d.ts"));
await call("a request is checked by its types", {}, async () => {
  const body = 'paths["/v1/audio/speech"]["post"]["requestBody"]["content"]["application/json"]';
  const head = `import type { paths } from "./api";\nexport const body: ${body} = `;
  const strict = ["--noEmit", "--strict", "--skipLibCheck"];
  writeFileSync(join(OUT, "good.ts"), `${head}{ input: "Hello.", voice: "calm" } as never as ${body};\nbody.input;\n`);
  run("tsc", ...strict, "good.ts");
  writeFileSync(join(OUT, "bad.ts"), `${head}{ input: 7 };\n`);
  try {
    run("tsc", ...strict, "bad.ts");
  } catch {
    return;
  }
  throw new Error("a number was taken for the text");
});
