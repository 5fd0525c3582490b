// The official conformance suite, through the proxy.
//
// Two questions: does the proxy in front of a complete server, however far away
// or shared, meet every requirement of 2025-11-25, and does it take anything away
// from a server that meets only some of them?

import assert from "node:assert/strict";
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { test } from "node:test";
import { peers } from "./peers.mjs";
import { Child, behind, configured, freePort, here, script, serve } from "./proxy.mjs";

const revision = "2025-11-25";
const json = "server-sse-polling/server-sse-content-type#1";
const suite = here("node_modules/@modelcontextprotocol/conformance");

const fixture = here("out/everything-server");
const fronts = {
  ...Object.fromEntries(Object.entries(behind).map(([way, open]) => [way, (t) => open(t, [fixture])])),
  http,
};

for (const [way, open] of Object.entries(fronts)) {
  test(`${revision}: 30 of 30 with the server behind: ${way}`, async (t) => {
    const proxy = await open(t);
    const checks = await run(t, `http://${proxy.host}/mcp`, way.replaceAll(" ", "-"));
    const failed = required().filter((scenario) => !passes(checks, scenario));
    assert.deepEqual(failed, []);
    assert.equal(required().length, 30);
  });
}

async function http(t) {
  const address = `127.0.0.1:${await freePort()}`;
  const server = new Child(t, fixture, ["-http", address, "-stateless=false"]);
  await server.match(/listening at/);
  return configured(t, { upstreams: { main: { url: `http://${address}/mcp` } } });
}

test("server-everything: nothing is worse than without the proxy", async (t) => {
  const peer = await peers["server-everything, streamableHttp"](t);
  const fronts = {
    stdio: await serve(t, ["--", process.execPath, script("server-everything"), "stdio"]),
    http: await configured(t, { upstreams: { main: { url: peer.url } } }),
  };
  const direct = await run(t, peer.url, "everything-direct");
  for (const [way, { host }] of Object.entries(fronts)) {
    const proxied = await run(t, `http://${host}/mcp`, `everything-${way}`);
    // Where the proxy answers with JSON, as it may, how a stream begins is not asked.
    const asked = ([check]) => !check.startsWith("server-sse-polling/") || !proxied.has(json);
    const worse = [...direct].filter(asked).filter(([check, status]) => rank(proxied.get(check)) < rank(status));
    assert.deepEqual(worse, [], way);
    const better = [...direct].filter(([check, status]) => rank(proxied.get(check)) > rank(status));
    t.diagnostic(`${way}: ${direct.size} checks, ${better.length} better: ${better.map(([check]) => check)}`);
  }
});

/** Runs the suite against url; the outcome of every check, keyed "scenario/check#n". */
async function run(t, url, name) {
  const out = here(`out/conformance-${name}`);
  rmSync(out, { recursive: true, force: true });
  const args = ["server", "--url", url, "--requirements", revision, "-o", out];
  const child = new Child(t, process.execPath, [`${suite}/dist/index.js`, ...args]);
  await child.exited;

  const checks = new Map();
  for (const dir of readdirSync(out)) {
    const scenario = dir.replace(/^server-/, "").replace(/-\d{4}-\d\d-\d\dT.*$/, "");
    const seen = {};
    for (const { id, status } of JSON.parse(readFileSync(`${out}/${dir}/checks.json`, "utf8"))) {
      seen[id] = (seen[id] ?? 0) + 1;
      checks.set(`${scenario}/${id}#${seen[id]}`, status);
    }
  }
  return checks;
}

/** The scenarios that the revision requires of servers. */
function required() {
  const text = readFileSync(`${suite}/requirements/${revision}.yaml`, "utf8");
  const [, section] = text.match(/^server:\n((?: {2}- .*\n)+)/m);
  return section.trim().split("\n").map((line) => line.replace(/^ *- /, ""));
}

function passes(checks, scenario) {
  const own = [...checks].filter(([check]) => check.startsWith(`${scenario}/`));
  return own.length > 0 && own.every(([, status]) => status !== "FAILURE");
}

/** Outcomes from worst to best; a check that did not run says nothing good. */
function rank(status) {
  return { undefined: 0, FAILURE: 0, SKIPPED: 1, WARNING: 2, INFO: 3, SUCCESS: 3 }[status];
}
