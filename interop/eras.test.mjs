// Clients of either era, with servers of either era: each client is told what a
// client of the server's own era is told without a proxy.
//
// The server is our fixture, which is in another language than these clients.
// How the Go SDK's clients fare is in cmd/mcp-proxy.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { fixture, fixtureHTTP, inspect, talks, versions } from "./eras.mjs";
import { binary, configured, serve } from "./proxy.mjs";

const own = { legacy: "TypeScript v2, legacy", modern: "TypeScript v2, modern" };

describe("", { concurrency: 2 }, () => {
  for (const era of Object.keys(versions)) {
    test(`a ${era} server over HTTP`, (t) => everyClient(t, era, overHTTP));
    test(`a ${era} server over stdio`, (t) => everyClient(t, era, overStdio));
    test(`a ${era} server, clients over stdio`, (t) => everyProcess(t, era));
    test(`a ${era} server and the Inspector`, (t) => inspector(t, era));
  }
});

async function overHTTP(t, era) {
  const url = await fixtureHTTP(t, versions[era]);
  return configured(t, { upstreams: { main: { url } } });
}

function overStdio(t, era) {
  return serve(t, ["--", ...fixture(versions[era])]);
}

async function everyClient(t, era, open) {
  const expected = await direct(t, era);
  const { host } = await open(t, era);
  for (const [name, talk] of Object.entries(talks)) {
    await t.test(name, async (t) => assert.deepEqual(await talk(t, `http://${host}/mcp`), expected));
  }
}

async function everyProcess(t, era) {
  const expected = await direct(t, era);
  const command = [binary, "stdio", "--", ...fixture(versions[era])];
  for (const [name, talk] of Object.entries(talks)) {
    await t.test(name, async (t) => assert.deepEqual(await talk(t, command), expected));
  }
}

/** What the server says to the clients of its own era, who all must hear the same. */
async function direct(t, era) {
  const url = await fixtureHTTP(t, versions[era]);
  const expected = await talks[own[era]](t, url);
  assert.deepEqual(expected.asked, { action: "accept", content: { name: "Who?" } });
  assert.deepEqual(expected.steps, [1, 2, 3]);
  assert.equal(expected.error.code, 4711);
  for (const name of Object.keys(talks).filter((name) => name.endsWith(era))) {
    assert.deepEqual(await talks[name](t, url), expected, `${name} without a proxy`);
  }
  return expected;
}

async function inspector(t, era) {
  const url = await fixtureHTTP(t, versions[era]);
  const { host } = await configured(t, { upstreams: { main: { url } } });
  const methods = {
    list: ["tools/list"],
    call: ["tools/call", "--tool-name", "echo", "--tool-arg", "text=h\u00e9"],
    "failing tool": ["tools/call", "--tool-name", "test_error_handling"],
    error: ["tools/call", "--tool-name", "fail"],
    resource: ["resources/read", "--uri", "test://static-text"],
    prompt: ["prompts/get", "--prompt-name", "test_prompt_with_arguments", "--prompt-args", "arg1=a", "arg2=b"],
  };
  for (const [name, method] of Object.entries(methods)) {
    const expected = bare(await inspect(url, era, ...method));
    for (const client of ["legacy", "modern"]) {
      await t.test(`${client}: ${name}`, async (t) => {
        assert.deepEqual(bare(await inspect(`http://${host}/mcp`, client, ...method)), expected);
      });
    }
  }
}

/** What is said, without what only one of the eras says with it. */
function bare({ result, error }) {
  const { _meta, ttlMs, cacheScope, resultType, ...rest } = result ?? {};
  return { ...rest, error };
}
