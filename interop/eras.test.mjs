// Clients of either era, with servers of either era: each client is told what a
// client of the server's own era is told without a proxy.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { connectV2, fixture, inspect, listening, modern, talks, versions } from "./eras.mjs";
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
    test(`${name}, a crowd over stdio`, async (t) => crowd(t, (await serve(t, ["--", ...servers[name]])).host));
    test(`${name}, a crowd over HTTP`, async (t) => crowd(t, await behindHTTP(t, servers[name])));
  }
  test("Go, modern, headers for arguments", headers);
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

/**
 * Who are asked at the same time are each asked their own, whoever they are to
 * the proxy. It is to know that the server asks: the first question of a process
 * at work on several calls would be refused, as nobody can tell whose it is.
 */
async function crowd(t, host) {
  const modes = [modern, modern, "legacy", "auto"];
  const asks = await Promise.all(modes.map((mode, i) => asking(t, `http://${host}/mcp`, mode, i)));
  await asks[0]("first");
  const times = Array.from({ length: 6 }, (_, n) => n);
  await Promise.all(times.flatMap((n) => asks.map((ask) => ask(n))));
}

/** A client as a function, which has the server ask it something and looks at the answer. */
async function asking(t, url, mode, i) {
  const { client } = await connectV2(t, url, mode, (message) => think(`${i} was asked ${message}`));
  return async (n) => {
    const { content } = await client.callTool({ name: "ask", arguments: { message: `${i}.${n}` } });
    assert.equal(JSON.parse(content[0].text).content.name, `${i} was asked ${i}.${n}`);
  };
}

/** The answer, after a while, so that they come in another order than the questions. */
async function think(answer) {
  await sleep(Math.random() * 40);
  return answer;
}

/** A server over HTTP wants some arguments in headers too, which only a client of its era over HTTP sends. */
async function headers(t) {
  const url = `http://${await behindHTTP(t, servers["Go, modern"])}/mcp`;
  for (const mode of ["legacy", modern]) {
    const { client } = await connectV2(t, url, mode);
    for (const region of ["us-west1", "Z\u00fcrich", " both ends ", "=?base64?eA==?="]) {
      const result = await client.callTool({ name: "test_x_mcp_header", arguments: { region, level: 7 } });
      assert.equal(result.content[0].text, "called", region);
    }
    await client.callTool({ name: "test_x_mcp_header", arguments: { level: 7 } });
  }
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
