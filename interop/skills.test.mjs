// Two servers with skills, and a client for them, all by fastmcp.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { Child, configured, directory, freePort, here, python, records, until } from "./proxy.mjs";

const interpreter = python("fastmcp-4.1.2");
const script = here("python/skills.py");
const files = { "notes.txt": "h\u00e9 \ud83d\udc4b\r\nno newline at the end", "data.bin": Buffer.from([0, 0xff, 0xc3, 0x28]) };

/** The ways to a server with the skills in a directory: each resolves to its upstream. */
const ways = {
  process: (t, dir) => ({ command: interpreter, args: [script, "serve", dir], startTimeout: "2m" }),
  async http(t, dir) {
    const port = await freePort();
    const server = new Child(t, interpreter, [script, "serve", dir, port]);
    await server.match(/running on/);
    return { url: `http://127.0.0.1:${port}/mcp` };
  },
};

test("the skills of two servers are one list and unchanged", async (t) => {
  const dirs = { a: skills(t, "a", "both", "one"), b: skills(t, "b", "both", "two") };
  const [a, b] = await Promise.all(Object.values(dirs).map((dir) => ask(interpreter, script, "serve", dir)));
  assert.deepEqual([a, b].map(uris), [["both", "one"].map(uri), ["both", "two"].map(uri)]);
  assert.notDeepEqual(a.skills[0], b.skills[0]);
  const merged = {
    extensions: a.extensions,
    skills: [...a.skills, b.skills[1]],
    got: [...a.got, b.got[1]],
    read: { ...b.read, ...a.read },
  };

  for (const [way, open] of Object.entries(ways)) {
    await t.test(way, async (t) => {
      const upstreams = { a: await open(t, dirs.a), b: await open(t, dirs.b) };
      const proxy = await configured(t, { upstreams });
      const url = `http://${proxy.host}/mcp`;
      assert.deepEqual(await complete(url, merged), merged);
      assert.deepEqual(await complete(`${url}/b`, b), b);
      const twice = records(proxy.output).filter(({ msg }) => msg.startsWith("listed by two upstreams"));
      assert.deepEqual(twice.map((record) => record.uri), [uri("both")]);
    });
  }
});

/** A directory with the skills of a server. */
function skills(t, server, ...names) {
  const root = directory(t);
  for (const name of names) {
    mkdirSync(join(root, name));
    const about = `---\nname: ${name}\ndescription: ${name} of ${server}\n---\n# Say ${server}\n`;
    for (const [file, data] of Object.entries({ "SKILL.md": about, ...files })) writeFileSync(join(root, name, file), data);
  }
  return root;
}

const uri = (name) => `skill://${name}/SKILL.md`;
const uris = ({ skills }) => skills.map((skill) => skill.uri);

/** What the client was told, once it is as many skills: a client does not wait for servers that are slow to start. */
function complete(url, { skills }) {
  return until(`${skills.length} skills at ${url}`, async () => {
    const said = await ask(url).catch((err) => assert.ok(err.stderr, err));
    return said?.skills.length >= skills.length && said;
  }, 120);
}

/** What the client was told; what it read has the digests of the list. */
async function ask(...target) {
  const { stdout } = await promisify(execFile)(interpreter, [script, "ask", ...target], { timeout: 120_000 });
  const said = JSON.parse(stdout);
  const digests = said.skills.flatMap(({ resources }) => resources.map((file) => [file.uri, file.digest]));
  assert.deepEqual(said.read, Object.fromEntries(digests));
  return said;
}
