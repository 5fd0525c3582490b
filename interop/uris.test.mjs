// uris.json says what three parsers make of legitimate and hostile URIs. The tests of
// proxy/policy hold it against rules; here it is held against the parsers, which change.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { binary, directory, here } from "./proxy.mjs";
import { place } from "./uris.mjs";

const rows = JSON.parse(readFileSync(here("uris.json"), "utf8"));
const uris = rows.map((row) => row.uri);
const python = () => JSON.parse(execFileSync("python3", [here("python/uris.py")], { input: JSON.stringify(uris) }));

for (const [parser, places] of [["node", () => uris.map(place)], ["python", python]]) {
  test(`${parser} makes of URIs what the table says`, (t) => {
    for (const [i, now] of places().entries()) {
      const { uri, is, [parser]: then } = rows[i];
      if (is === "legitimate") assert.equal(now, then, uri);
      else if (now !== then) t.diagnostic(`${JSON.stringify(uri)} was ${then} and is ${now}`); // it is refused all the same
    }
  });
}

const policies = {
  allows: { allow: ["docs://public/*", "notes:public/*", "file:///pub/*"] },
  denies: { deny: ["docs://private/*", "notes:private/*", "file:///secret/*", "file:///c:/secret/*"] },
};
const ours = rows.filter(({ uri }) => !/^http/i.test(uri));

for (const [how, resources] of Object.entries(policies)) {
  test(`through a proxy that ${how}, a server reads what is legitimate and nothing else`, async (t) => {
    const config = join(directory(t), "uris.json");
    const upstreams = { uris: { command: process.execPath, args: [here("uris.mjs"), "serve"] } };
    writeFileSync(config, JSON.stringify({ upstreams, policies: [{ who: "any", resources }] }));
    const proxy = spawn(binary, ["stdio", "--config", config], { stdio: ["pipe", "pipe", "ignore"] });
    t.after(() => proxy.kill());
    const answers = createInterface({ input: proxy.stdout })[Symbol.asyncIterator]();
    const ask = async (id, method, params) => {
      proxy.stdin.write(JSON.stringify({ jsonrpc: "2.0", id, method, params }) + "\n");
      for (;;) {
        const answer = JSON.parse((await answers.next()).value);
        if (answer.id === id) return answer;
      }
    };
    await ask("init", "initialize", { protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: "uris", version: "1" } });
    for (const [id, { uri, is, node }] of ours.entries()) {
      const { result, error } = await ask(id, "resources/read", { uri });
      if (is === "hostile") assert.equal(error?.code, -32002, `${JSON.stringify(uri)} is read: ${JSON.stringify(result)}`);
      else if (how === "denies" || /^(docs|notes|file):/i.test(uri)) assert.equal(result?.contents[0].text, node, uri);
    }
  });
}
