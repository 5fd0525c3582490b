// Clients of either era, with servers of either era: each client is told what a
// client of the server's own era is told without a proxy.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { fixture, inspect, listening, talks, versions } from "./eras.mjs";
import { binary, configured, here, serve } from "./proxy.mjs";

const servers = {
  "Go, legacy": fixture(versions.legacy),
  "Go, modern": fixture(versions.modern),
  "TypeScript v1, legacy": [process.execPath, here("server.mjs")],
  "TypeScript v2, modern": [process.execPath, here("server2.mjs")],
};

describe("servers of one era", { concurrency: 2 }, () => {
  for (const [name, command] of Object.entries(servers)) {
    const proxied = async (t) => `http://${(await serve(t, ["--", ...command])).host}/mcp`;
    test(`${name}, over stdio`, (t) => everyClient(t, name, proxied));
  }
  for (const name of ["Go, legacy", "Go, modern"]) {
    const proxied = async (t) => `http://${await behindHTTP(t, servers[name])}/mcp`;
    test(`${name}, over HTTP`, (t) => everyClient(t, name, proxied));
    test(`${name}, clients over stdio`, (t) => everyClient(t, name, () => [binary, "stdio", "--", ...servers[name]]));
    test(`${name}, the Inspector`, (t) => inspector(t, name));
  }
});

async function behindHTTP(t, command) {
  const { host } = await configured(t, { upstreams: { main: { url: await listening(t, command) } } });
  return host;
}

async function everyClient(t, name, open) {
  const expected = await direct(t, name);
  const target = await open(t);
  for (const [client, talk] of Object.entries(talks)) {
    await t.test(client, async (t) => assert.deepEqual(await talk(t, target), expected));
  }
}

/** What a server says to the clients of its own era, who all must hear the same. */
async function direct(t, name) {
  const era = eraOf(name);
  const [first, ...others] = Object.keys(talks).filter((client) => eraOf(client) === era);
  const expected = await talks[first](t, servers[name]);
  assert.deepEqual(expected.asked, { action: "accept", content: { name: "Who?" } });
  assert.deepEqual(expected.steps, [1, 2, 3]);
  for (const client of others) {
    assert.deepEqual(await talks[client](t, servers[name]), expected, `${client}, without a proxy`);
  }
  return expected;
}

function eraOf(name) {
  return name.split(", ").at(-1);
}

async function inspector(t, name) {
  const url = await listening(t, servers[name]);
  const { host } = await configured(t, { upstreams: { main: { url } } });
  const methods = {
    list: ["tools/list"],
    call: ["tools/call", "--tool-name", "echo", "--tool-arg", "text=h\u00e9"],
    "failing tool": ["tools/call", "--tool-name", "test_error_handling"],
    error: ["tools/call", "--tool-name", "fail"],
    resource: ["resources/read", "--uri", "test://static-text"],
    prompt: ["prompts/get", "--prompt-name", "test_prompt_with_arguments", "--prompt-args", "arg1=a", "arg2=b"],
  };
  for (const [what, method] of Object.entries(methods)) {
    const expected = bare(await inspect(url, eraOf(name), ...method));
    for (const era of Object.keys(versions)) {
      await t.test(`${era}: ${what}`, async () => {
        assert.deepEqual(bare(await inspect(`http://${host}/mcp`, era, ...method)), expected);
      });
    }
  }
}

/** What is said, without what only one of the eras says with it. */
function bare({ result, error }) {
  const { _meta, ttlMs, cacheScope, resultType, ...rest } = result ?? {};
  return { ...rest, error };
}
