// The official conformance suite, through the proxy.
//
// In front of a complete server, however far away or shared, the proxy meets
// all that either revision requires, on one URL. In front of a server of one era
// it meets the other one too, but for what is listed with a reason. It takes
// nothing away from servers that meet only some of it. As a client it does what
// the suite wants of clients.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { fixture, listening, versions } from "./eras.mjs";
import { peers } from "./peers.mjs";
import { Child, behind, configured, here, script, serve, until } from "./proxy.mjs";
import { client, compare, meets, meetsBut, required, revisions, run } from "./suite.mjs";

const everything = here("out/everything-server");
const counts = { [revisions.legacy]: 30, [revisions.modern]: 37 };

async function overHTTP(t, command, upstream = {}) {
  return configured(t, { upstreams: { main: { url: await listening(t, command), ...upstream } } });
}

describe("both revisions on one URL", { concurrency: 2 }, () => {
  for (const [way, open] of Object.entries(behind)) {
    test(`behind: ${way}`, async (t) => {
      const { host } = await open(t, [everything]);
      for (const [revision, count] of Object.entries(counts)) {
        await t.test(revision, (t) => meets(t, `http://${host}/mcp`, revision, count, way));
      }
    });
  }

  // The SDK's handler speaks one revision in full for each of its forms.
  test("behind: HTTP, with sessions", async (t) => {
    const { host } = await overHTTP(t, [everything, "-stateless=false"]);
    await meets(t, `http://${host}/mcp`, revisions.legacy, 30, "stateful");
    await meetsBut(t, `http://${host}/mcp`, revisions.modern, "expected-modern-on-stateful.yml", "stateful");
  });

  test("behind: HTTP, without sessions", async (t) => {
    const { host } = await overHTTP(t, [everything, "-stateless=true"]);
    await meets(t, `http://${host}/mcp`, revisions.modern, 37, "stateless");
    await meetsBut(t, `http://${host}/mcp`, revisions.legacy, "expected-legacy-on-stateless.yml", "stateless");
  });

  test("behind: HTTP, without sessions, spoken to as modern only", async (t) => {
    const { host } = await overHTTP(t, [here("out/fixture"), "-stateless"], { era: "modern" });
    for (const [revision, count] of Object.entries(counts)) {
      await t.test(revision, (t) => meets(t, `http://${host}/mcp`, revision, count, "pinned"));
    }
  });
});

describe("a server of one era", { concurrency: 2 }, () => {
  for (const [era, revision] of Object.entries(revisions)) {
    const command = fixture(versions[era]);
    const fronts = {
      stdio: (t) => serve(t, ["--", ...command]),
      HTTP: (t) => overHTTP(t, command),
      "a link": (t) => behind["unix link"](t, command),
    };
    for (const [way, open] of Object.entries(fronts)) {
      test(`${era}, over ${way}`, async (t) => {
        const { host } = await open(t);
        const url = `http://${host}/mcp`;
        await meets(t, url, revision, counts[revision], `${era}-${way}`);
        const [other] = Object.entries(revisions).find(([name]) => name !== era);
        await meetsBut(t, url, revisions[other], `expected-${other}-on-${era}.yml`, `${era}-${way}`);
      });
    }
    test(`${era}, without a proxy`, async (t) => {
      await meets(t, await listening(t, command), revision, counts[revision], `${era}-direct`);
    });
  }
});

// Servers that know nothing of the suite meet only some of it.
const others = {
  "server-everything": {
    stdio: [process.execPath, script("server-everything"), "stdio"],
    http: async (t) => (await peers["server-everything, streamableHttp"](t)).url,
  },
  "mcp-go's everything": { stdio: [here("out/everything")], http: startMCPGo },
};

/** It listens at port 8080 and nowhere else. */
async function startMCPGo(t) {
  const server = new Child(t, here("out/everything"), ["-transport", "http"]);
  await server.match(/listening on :8080/);
  await until("its port", () => answers("http://127.0.0.1:8080/mcp"));
  return "http://127.0.0.1:8080/mcp";
}

function answers(url) {
  return fetch(url, { method: "DELETE" }).then(() => true, () => false);
}

describe("nothing is worse than without the proxy", { concurrency: 2 }, () => {
  for (const [name, { stdio, http }] of Object.entries(others)) {
    test(name, async (t) => {
      const url = await http(t);
      const fronts = {
        stdio: await serve(t, ["--", ...stdio]),
        http: await configured(t, { upstreams: { main: { url } } }),
      };
      for (const revision of Object.values(revisions)) {
        const direct = await run(t, url, revision, `${name}-direct`);
        for (const [way, { host }] of Object.entries(fronts)) {
          const proxied = await run(t, `http://${host}/mcp`, revision, `${name}-${way}`);
          const { worse, better } = compare(direct.checks, proxied.checks);
          assert.deepEqual(worse, [], `${revision}, ${way}`);
          t.diagnostic(`${revision}, ${way}: ${direct.checks.size} checks, ${better.length} better`);
        }
      }
    });
  }
});

describe("scenarios for clients", { concurrency: 2 }, () => {
  const program = here("out/everything-client");
  const ways = {
    "": `${process.execPath} ${here("through.mjs")} ${program}`,
    "auth/": `${process.execPath} ${here("asker.mjs")}`, // the proxy logs in
  };
  const counts = { [revisions.legacy]: 18, [revisions.modern]: 32 };
  for (const [revision, count] of Object.entries(counts)) {
    const scenarios = required(revision, "client");
    test(`${revision}: there are ${count}`, () => assert.equal(scenarios.length, count));
    for (const scenario of scenarios) {
      const [, kind] = scenario.match(/^(auth\/|)/);
      test(`${revision}: ${scenario}`, (t) => client(t, ways[kind], revision, scenario));
    }
    for (const scenario of ["auth/client-credentials-jwt", "auth/client-credentials-basic"]) {
      test(`${revision}: ${scenario}`, (t) => client(t, ways["auth/"], revision, scenario));
    }
  }
});
