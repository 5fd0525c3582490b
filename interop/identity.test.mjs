// Who a client is: serve asks for tokens of an authorization server that others
// wrote, and clients that others wrote find out for themselves how to get one.
// No token that is wrong gets anything, and none is ever logged.

import assert from "node:assert/strict";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import http from "node:http";
import { join } from "node:path";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { authorizationServer } from "./authorization.mjs";
import { call as callTool, connect } from "./client.mjs";
import { dances, loggedIn, older } from "./dance.mjs";
import { configured, directory, freePort, here, until } from "./proxy.mjs";
import { posted } from "./raw.mjs";
import { now, wrong } from "./wrong.mjs";

const upstreams = { main: { command: process.execPath, args: [here("server.mjs")] } };
const policies = [{ who: "any", scopes: { main__work: ["files.write"] } }];

/** serve, which wants tokens of these issuers; url is where, and who tokens must be for. */
async function guarded(t, issuers, { path = "/mcp", tokens, ...jwt } = {}) {
  const port = await freePort();
  const publicURL = `http://127.0.0.1:${port}`;
  const url = publicURL + path;
  const audience = [url, publicURL];
  const accepted = [issuers].flat().map((issuer) => ({ issuer: issuer.url, audience, scopes: ["mcp"], ...jwt }));
  const auth = { tokens, jwt: accepted };
  const proxy = await configured(t, { publicURL, auth, policies, upstreams }, { port });
  t.after(() => assert.doesNotMatch(proxy.output, /eyJ[\w-]{10}/, "a token is in the log"));
  return { proxy, url, publicURL };
}

const echo = { name: "echo", arguments: { text: "hello" } };

/** What is answered to a call of a tool with this for a header. */
async function call(url, authorization, params = echo) {
  const response = await fetch(url, posted("tools/call", params, authorization && { Authorization: authorization }));
  return { status: response.status, challenge: challenge(response), text: await response.text() };
}

const bearer = (url, token, params) => call(url, `Bearer ${token}`, params);

/** What WWW-Authenticate says: undefined if nothing. */
function challenge(response) {
  const header = response.headers.get("www-authenticate");
  if (header === null) return undefined;
  assert.match(header, /^Bearer( |$)/);
  return Object.fromEntries([...header.matchAll(/(\w+)="([^"]*)"/g)].map(([, name, value]) => [name, value]));
}

describe("the whole dance", { concurrency: 2 }, () => {
  for (const [name, dance] of Object.entries(dances)) {
    test(name, async (t) => {
      const issuer = await authorizationServer(t);
      const { url } = await guarded(t, issuer);
      assert.deepEqual(await dance(t, url), { said: "h\u00e9", stepped: "done" });
      assert.equal(issuer.authorizations, 2); // the second is for the tool that wants more
    });
  }

  for (const [name, how] of Object.entries(older)) {
    test(`${name}, SSE`, async (t) => {
      const issuer = await authorizationServer(t);
      const { url } = await guarded(t, issuer, { path: "/sse" });
      const client = await loggedIn(t, url, ...how);
      assert.equal(await client.call("echo", { text: "h\u00e9" }), "h\u00e9");
      // Its requests are answered on a stream, which has no status.
      await assert.rejects(client.call("work", { steps: 0, hold: false }), /Insufficient scope: .*files\.write/);
    });
  }

  test("at one upstream's own path", async (t) => {
    const issuer = await authorizationServer(t);
    const { url } = await guarded(t, issuer, { path: "/mcp/main" });
    assert.deepEqual(await dances["TypeScript v2, either"](t, url), { said: "h\u00e9", stepped: "done" });
  });

  for (const alg of ["RS256", "EdDSA"]) {
    test(`tokens signed with ${alg}`, async (t) => {
      const issuer = await authorizationServer(t, { alg });
      const { url } = await guarded(t, issuer);
      assert.deepEqual(await dances["TypeScript v2, either"](t, url), { said: "h\u00e9", stepped: "done" });
    });
  }

  test("a client refreshes its token, and its session goes on", async (t) => {
    const issuer = await authorizationServer(t, { ttl: 2 });
    const { url } = await guarded(t, issuer, { skew: "0s" });
    const { call, transport, login } = await loggedIn(t, url);
    const { sessionId } = transport;
    for (const first = login.saved; login.saved === first; await sleep(100)) {
      assert.equal(await call("echo", { text: "again" }), "again");
    }
    assert.equal(issuer.authorizations, 1);
    assert.equal(transport.sessionId, sessionId);
  });
});

describe("metadata and challenges", { concurrency: 2 }, () => {
  test("what a client without a token is told", async (t) => {
    const issuer = await authorizationServer(t);
    const { url, publicURL } = await guarded(t, issuer);
    for (const path of ["/mcp", "/mcp/main"]) {
      const { status, challenge } = await call(publicURL + path);
      assert.equal(status, 401);
      const { realm, resource_metadata, ...rest } = challenge;
      assert.deepEqual(rest, { scope: "mcp" }); // RFC 6750: no error where nothing was tried
      assert.equal(resource_metadata, `${publicURL}/.well-known/oauth-protected-resource${path}`);
      const { resource, authorization_servers, scopes_supported } = await (await fetch(resource_metadata)).json();
      assert.deepEqual([resource, authorization_servers], [publicURL + path, [issuer.url]]);
      assert.ok(scopes_supported.includes("mcp"));
    }
    const root = await (await fetch(`${publicURL}/.well-known/oauth-protected-resource`)).json();
    assert.deepEqual(root.authorization_servers, [issuer.url]);
    assert.equal(url.startsWith(root.resource), true);
  });

  test("a tool that wants more names all it wants", async (t) => {
    const issuer = await authorizationServer(t);
    const { url } = await guarded(t, issuer);
    const work = { name: "work", arguments: { steps: 0, hold: false } };
    const { status, challenge } = await bearer(url, await issuer.mint(url), work);
    assert.equal(status, 403);
    assert.equal(challenge.error, "insufficient_scope");
    assert.deepEqual(challenge.scope.split(" ").sort(), ["files.write", "mcp"]);
    const token = await issuer.mint(url, { claims: { scope: "mcp files.write" } });
    assert.equal((await bearer(url, token, work)).status, 200);
  });

  test("over a WebSocket, where there is no status", async (t) => {
    const issuer = await authorizationServer(t);
    const { url, publicURL } = await guarded(t, issuer);
    const { client } = await connect(t, async () => overWebSocket(publicURL, await issuer.mint(url)));
    const { tools } = await client.listTools();
    assert.ok(tools.some(({ name }) => name === "work")); // listed, and wants more
    assert.equal(await callTool(client, "echo", { text: "h\u00e9" }), "h\u00e9");
    await assert.rejects(callTool(client, "work", { steps: 0, hold: false }), /Insufficient scope: .*files\.write/);
    await assert.rejects(overWebSocket(publicURL, await issuer.mint("http://127.0.0.1:1/mcp")));
  });

  test("without a scope that all need", async (t) => {
    const issuer = await authorizationServer(t);
    const { url } = await guarded(t, issuer);
    const { status, challenge } = await bearer(url, await issuer.mint(url, { claims: { scope: "files.write" } }));
    assert.deepEqual([status, challenge.error], [403, "insufficient_scope"]);
    assert.match(challenge.scope, /\bmcp\b/);
  });
});

/** A transport to /ws with a token: no SDK has one with headers. */
async function overWebSocket(publicURL, token) {
  const socket = await webSocket(publicURL, token);
  const transport = {
    start: async () => {},
    send: async (message) => socket.send(JSON.stringify(message)),
    close: async () => socket.close(),
  };
  socket.onmessage = ({ data }) => transport.onmessage(JSON.parse(data));
  return transport;
}

/** An open WebSocket. */
function webSocket(publicURL, token) {
  const headers = { Authorization: `Bearer ${token}` };
  const socket = new WebSocket(`${publicURL.replace("http", "ws")}/ws`, { protocols: ["mcp"], headers });
  return new Promise((resolve, reject) => {
    socket.onopen = () => resolve(socket);
    socket.onerror = () => reject(new Error("no WebSocket"));
  });
}

describe("tokens that are wrong", () => {
  test("are refused, each of them, on each path", async (t) => {
    const issuer = await authorizationServer(t);
    const trap = await listening(t);
    const { proxy, url, publicURL } = await guarded(t, issuer);
    assert.equal((await bearer(url, await issuer.mint(url))).status, 200);
    for (const [name, make] of Object.entries(wrong)) {
      await t.test(name, async () => {
        const token = await make({ issuer, url, trap });
        const { status, challenge, text } = await bearer(url, token);
        assert.deepEqual([status, challenge?.error], [401, "invalid_token"], text.slice(0, 500));
        assert.match(challenge.resource_metadata, /oauth-protected-resource\/mcp$/);
        assert.equal(text.includes(token.slice(-20)), false);
        for (const path of ["/mcp/main", "/sse", "/ws"]) {
          const headers = { ...(path === "/ws" && upgrade), Authorization: `Bearer ${token}` };
          assert.equal(await statusOf(publicURL + path, headers), 401, path);
        }
        assert.equal(proxy.output.includes(token.slice(-20)), false);
      });
    }
    assert.equal(trap.asked, 0);
    assert.equal((await bearer(url, await issuer.mint(url))).status, 200);
    // Once at first, and at most once more for all the keys that are not known.
    assert.ok(issuer.asked["/jwks"] <= 2, `${issuer.asked["/jwks"]} fetches of keys`);
  });

  test("and so is what is no token", async (t) => {
    const issuer = await authorizationServer(t);
    const { proxy, url } = await guarded(t, issuer);
    const token = await issuer.mint(url);
    const query = await fetch(`${url}?access_token=${token}`, posted("tools/call", echo));
    assert.deepEqual([query.status, challenge(query).error], [400, "invalid_request"]);
    const basic = `Basic ${btoa("ada:secret")}`;
    for (const header of ["Bearer", "Bearer ", basic, token, `Bearer ${token} ${token}`, `bearer${token}`]) {
      const { status } = await call(url, header);
      assert.ok([400, 401].includes(status), `${header.slice(0, 10)}: ${status}`);
    }
    // The connection may end before all is read.
    const huge = await call(url, `Bearer ${"x".repeat(2 << 20)}`).catch(() => ({ status: 431 }));
    assert.ok([400, 401, 431].includes(huge.status), `${huge.status}`);
    assert.equal((await call(url, `bearer ${token}`)).status, 200); // RFC 9110: the scheme has no case
    assert.equal(proxy.output.includes(token), false);
  });

  test("clocks may differ a little", async (t) => {
    const issuer = await authorizationServer(t);
    const { url } = await guarded(t, issuer, { skew: "20s" });
    for (const [claims, status] of [
      [{ exp: now() - 10 }, 200],
      [{ nbf: now() + 10, iat: now() + 10 }, 200],
      [{ exp: now() - 30 }, 401],
      [{ nbf: now() + 40 }, 401],
    ]) {
      assert.equal((await bearer(url, await issuer.mint(url, { claims }))).status, status, JSON.stringify(claims));
    }
  });
});

const upgrade = {
  Upgrade: "websocket",
  Connection: "Upgrade",
  "Sec-WebSocket-Version": "13",
  "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
};

/** The status of a GET, which may be for a WebSocket. */
async function statusOf(url, headers) {
  const request = http.get(url, { agent: false, headers });
  const [response] = await Promise.race([once(request, "response"), once(request, "upgrade")]);
  request.destroy();
  return response.statusCode;
}

/** A server that counts who comes. */
async function listening(t) {
  const trap = { asked: 0 };
  const server = http.createServer((req, res) => {
    trap.asked++;
    res.end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  return Object.assign(trap, { url: `http://127.0.0.1:${server.address().port}/` });
}

describe("keys", { concurrency: 2 }, () => {
  test("are rotated under load, and no call fails", async (t) => {
    const issuer = await authorizationServer(t);
    const { url } = await guarded(t, issuer);
    let calls = 0;
    let stop = false;
    const failed = [];
    const caller = async () => {
      while (!stop) {
        const { status, text } = await bearer(url, await issuer.mint(url));
        if (status !== 200) failed.push(`${status}: ${text}`);
        calls++;
      }
    };
    const callers = Array.from({ length: 16 }, caller);
    await until("calls before", () => calls > 200);
    const old = await issuer.mint(url);
    issuer.rotate();
    const before = calls;
    await until("calls after", () => calls > before + 400);
    stop = true;
    await Promise.all(callers);
    assert.deepEqual(failed, []);
    assert.equal((await bearer(url, old)).status, 200);
    assert.equal(issuer.asked["/jwks"], 2);
    t.diagnostic(`${calls} calls, each with a token of its own`);
  });

  test("that are withdrawn take their tokens with them", async (t) => {
    const issuer = await authorizationServer(t);
    const { url } = await guarded(t, issuer);
    const old = await issuer.mint(url);
    assert.equal((await bearer(url, old)).status, 200);
    issuer.rotate("withdraw");
    assert.equal((await bearer(url, await issuer.mint(url))).status, 200);
    assert.equal((await bearer(url, old)).status, 401);
  });

  test("that nobody knows are looked for once", async (t) => {
    const issuer = await authorizationServer(t);
    const { url } = await guarded(t, issuer);
    assert.equal((await bearer(url, await issuer.mint(url))).status, 200);
    const before = issuer.asked["/jwks"];
    const asks = Array.from({ length: 1000 }, (_, i) => issuer.mint(url, { header: { kid: `bogus ${i}` } }));
    const statuses = await inTurn(await Promise.all(asks), 50, async (token) => (await bearer(url, token)).status);
    assert.deepEqual(new Set(statuses), new Set([401]));
    assert.equal(issuer.asked["/jwks"] - before, 1);
  });

  test("that are known are good while their server is down", async (t) => {
    const issuer = await authorizationServer(t);
    const { url } = await guarded(t, issuer);
    assert.equal((await bearer(url, await issuer.mint(url))).status, 200);
    issuer.down = true;
    for (let i = 0; i < 20; i++) assert.equal((await bearer(url, await issuer.mint(url))).status, 200);
    const unknown = await issuer.mint(url, { header: { kid: "bogus" } });
    assert.equal((await bearer(url, unknown)).status, 401);
  });
});

/** What work makes of each, so many at once. */
async function inTurn(items, width, work) {
  const results = [];
  const worker = async () => {
    for (let item = items.pop(); item; item = items.pop()) results.push(await work(item));
  };
  await Promise.all(Array.from({ length: width }, worker));
  return results;
}

describe("what lives longer than a token", { concurrency: 3 }, () => {
  const soon = () => ({ claims: { exp: now() + 3 } });

  test("a WebSocket is closed", async (t) => {
    const issuer = await authorizationServer(t);
    const { url, publicURL } = await guarded(t, issuer, { skew: "0s" });
    const socket = await webSocket(publicURL, await issuer.mint(url, soon()));
    socket.send(JSON.stringify({ jsonrpc: "2.0", id: 1, method: "ping" }));
    const [{ data }] = await once(socket, "message");
    assert.deepEqual(JSON.parse(data), { jsonrpc: "2.0", id: 1, result: {} });
    const [{ code }] = await once(socket, "close");
    assert.equal(code, 1008);
  });

  test("a stream of the older transport ends", async (t) => {
    const issuer = await authorizationServer(t);
    const { url, publicURL } = await guarded(t, issuer, { skew: "0s" });
    const headers = { Authorization: `Bearer ${await issuer.mint(url, soon())}` };
    const response = await fetch(`${publicURL}/sse`, { headers });
    assert.equal(response.status, 200);
    assert.match(await response.text(), /event: endpoint/); // to its end
  });

  test("a session waits for the next token, of the same client only", async (t) => {
    const issuer = await authorizationServer(t);
    const { url } = await guarded(t, issuer, { skew: "0s" });
    const [first, second] = [await issuer.mint(url, soon()), await issuer.mint(url)];
    const other = await issuer.mint(url, { claims: { sub: "bob" } });
    const session = await begin(url, first);
    const ping = async (token) => (await legacy(url, token, { jsonrpc: "2.0", id: 2, method: "ping" }, session)).status;
    assert.equal(await ping(first), 200);
    assert.equal(await ping(other), 404);
    await until("the token's end", async () => (await ping(first)) === 401);
    assert.equal(await ping(second), 200);
    assert.equal(await ping(other), 404);
  });
});

test("a session is of one client, whoever has its name elsewhere", async (t) => {
  const issuers = [await authorizationServer(t), await authorizationServer(t)];
  const tokenFile = join(directory(t), "ada");
  writeFileSync(tokenFile, "a-token-of-another-ada", { mode: 0o600 });
  const { url } = await guarded(t, issuers, { tokens: [{ name: "ada", tokenFile }] });
  const [own, other] = await Promise.all(issuers.map((issuer) => issuer.mint(url)));
  const session = await begin(url, own);
  const ping = async (token) => (await legacy(url, token, { jsonrpc: "2.0", id: 2, method: "ping" }, session)).status;
  assert.equal(await ping(own), 200);
  assert.equal(await ping(other), 404);
  assert.equal(await ping("a-token-of-another-ada"), 404);
});

/** A session of the legacy era: its id. */
async function begin(url, token) {
  const clientInfo = { name: "raw", version: "1" };
  const params = { protocolVersion: "2025-11-25", capabilities: {}, clientInfo };
  const response = await legacy(url, token, { jsonrpc: "2.0", id: 1, method: "initialize", params });
  assert.equal(response.status, 200);
  const session = response.headers.get("mcp-session-id");
  await legacy(url, token, { jsonrpc: "2.0", method: "notifications/initialized" }, session);
  return session;
}

async function legacy(url, token, message, session) {
  const usual = { "Content-Type": "application/json", Accept: "application/json, text/event-stream" };
  const own = session && { "Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25" };
  const headers = { ...usual, ...own, Authorization: `Bearer ${token}` };
  const response = await fetch(url, { method: "POST", headers, body: JSON.stringify(message) });
  await response.text();
  return response;
}
