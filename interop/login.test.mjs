// How we prove who we are: mcp-proxy logs in at an authorization server that
// others wrote, for a remote server that wants its tokens: one that others
// wrote too, or another mcp-proxy. People agree in a browser or with a code, and
// programs have credentials.

import assert from "node:assert/strict";
import { SignJWT, exportJWK, exportPKCS8, generateKeyPair } from "jose";
import { once } from "node:events";
import { rmSync } from "node:fs";
import http from "node:http";
import { describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { authorizationServer } from "./authorization.mjs";
import { browse } from "./browser.mjs";
import { call, connect, remote } from "./client.mjs";
import { Person } from "./person.mjs";
import { Child, configured, freePort, here, until } from "./proxy.mjs";
import { protectedServer } from "./protected.mjs";

/** An authorization server, a server that wants its tokens, and somebody who may have some. */
async function rig(t, options) {
  const issuer = await authorizationServer(t, options);
  const server = await protectedServer(t, issuer);
  return { issuer, server, person: new Person(t) };
}

const echo = (client) => call(client, "echo", { text: "h\u00e9" });
const five = (make) => Promise.all(Array.from({ length: 5 }, make));

describe("somebody", { concurrency: 2 }, () => {
  test("is asked by connect, once", async (t) => {
    const { issuer, server, person } = await rig(t);
    for (let i = 0; i < 2; i++) {
      const { client } = await connect(t, () => person.connect(server.url));
      assert.equal(await echo(client), "h\u00e9");
      await client.close();
    }
    assert.equal(issuer.authorizations, 1);
    assert.equal(person.browsed.length, 1);
    assert.deepEqual(new Set(server.calls.map(({ claims }) => claims.scope)), new Set(["mcp"]));
  });

  test("logs in and out", async (t) => {
    const { issuer, server, person } = await rig(t);
    await person.run(["login", server.url]);
    const { client } = await connect(t, () => person.connect(server.url));
    assert.equal(await echo(client), "h\u00e9");
    assert.equal(issuer.authorizations, 1);
    assert.equal(await issuer.granted(), 1);
    await person.run(["logout", server.url]);
    assert.equal(await issuer.granted(), 0);
    const later = await connect(t, () => person.connect(server.url));
    assert.equal(await echo(later.client), "h\u00e9");
    assert.equal(issuer.authorizations, 2);
  });

  test("starts five programs at once, and agrees once", async (t) => {
    const { issuer, server, person } = await rig(t);
    const clients = await five(() => connect(t, () => person.connect(server.url)));
    const said = await Promise.all(clients.map(({ client }) => echo(client)));
    assert.deepEqual(said, Array(5).fill("h\u00e9"));
    assert.equal(person.browsed.length, 1);
    assert.equal(issuer.authorizations, 1);
  });

  test("is asked anew when the program that asked is killed", async (t) => {
    const { issuer, server, person } = await rig(t);
    const idle = person.file("idle", ""); // nobody looks at the first page
    const transports = Array.from({ length: 5 }, () => person.connect(server.url));
    const opened = transports.map((transport) => connect(t, () => transport));
    const asks = () => person.logs.findIndex((log) => log.includes(issuer.url));
    const killed = await until("somebody to ask", () => person.browsed.length === 1 && asks() + 1) - 1;
    rmSync(idle);
    process.kill(transports[killed].pid, "SIGKILL");
    await assert.rejects(opened[killed]);
    opened.splice(killed, 1);
    for (const { client } of await Promise.all(opened)) assert.equal(await echo(client), "h\u00e9");
    assert.equal(person.browsed.length, 2);
    assert.equal(issuer.authorizations, 1);
  });

  test("is asked again for a tool that wants more", async (t) => {
    const { issuer, server, person } = await rig(t);
    const { client } = await connect(t, () => person.connect(server.url));
    assert.equal(await echo(client), "h\u00e9");
    assert.equal(await call(client, "work"), "done");
    assert.equal(await echo(client), "h\u00e9");
    assert.equal(issuer.authorizations, 2);
    assert.deepEqual(server.calls.at(-1).claims.scope.split(" ").sort(), ["files.write", "mcp"]);
  });

  test("is not asked again as long as tokens are refreshed, whoever wants them", async (t) => {
    const { issuer, server, person } = await rig(t, { ttl: 3, grace: 3 });
    const clients = await five(() => connect(t, () => person.connect(server.url)));
    const first = issuer.asked["/token"];
    for (const end = Date.now() + 8000; Date.now() < end; await sleep(50)) {
      await Promise.all(clients.map(async ({ client }) => assert.equal(await echo(client), "h\u00e9")));
    }
    assert.equal(issuer.authorizations, 1);
    assert.equal(person.browsed.length, 1);
    const refreshed = issuer.asked["/token"] - first;
    assert.ok(refreshed >= 2 && refreshed <= 12, `${refreshed} refreshes`); // of five programs together
  });

  test("is not asked when a token is taken back, and the next one can be had", async (t) => {
    const { issuer, server, person } = await rig(t);
    const { client } = await connect(t, () => person.connect(server.url));
    assert.equal(await echo(client), "h\u00e9");
    server.retire();
    assert.equal(await echo(client), "h\u00e9");
    assert.equal(issuer.authorizations, 1);
  });

  test("is asked again when what was granted is revoked", async (t) => {
    const { issuer, server, person } = await rig(t);
    const { client } = await connect(t, () => person.connect(server.url));
    assert.equal(await echo(client), "h\u00e9");
    await issuer.revoke();
    server.retire();
    assert.equal(await echo(client), "h\u00e9");
    assert.equal(issuer.authorizations, 2);
  });

  test("has several servers, and logs in to each", async (t) => {
    const [one, other] = [await authorizationServer(t), await authorizationServer(t)];
    const issuers = [one, other, one];
    const servers = await Promise.all(issuers.map((issuer) => protectedServer(t, issuer)));
    const person = new Person(t);
    const upstreams = Object.fromEntries(servers.map(({ url }, i) => [`s${i}`, { url, auth: { oauth: {} } }]));
    const config = person.file("mcp-proxy.json", JSON.stringify({ upstreams }));
    const { client } = await connect(t, () => person.transport(["stdio", "--config", config]));
    for (const [i, { calls, url }] of servers.entries()) {
      await until(`s${i}`, () => call(client, `s${i}__echo`, { text: "here" }).catch(() => false));
      assert.deepEqual(calls.map(({ claims }) => claims.aud), [url]);
    }
    assert.equal(person.browsed.length, 3);
  });

  test("sends a token to no other server, wherever a server points", async (t) => {
    const { server, person } = await rig(t);
    const trap = await trapped(t);
    const { client } = await connect(t, () => person.connect(server.url));
    assert.equal(await echo(client), "h\u00e9");
    server.moved = trap.url;
    await assert.rejects(echo(client));
    assert.deepEqual(trap.authorized, []);
  });

  const elsewhere = { "--no-browser": "/auth", "--device": "/device", "": "/device" };
  for (const [flag, path] of Object.entries(elsewhere)) {
    test(`without a browser opens the page that login ${flag} prints`, async (t) => {
      const { issuer, server, person } = await rig(t);
      const login = person.spawn(["login", server.url, flag].filter(Boolean), { BROWSER: undefined, DISPLAY: undefined });
      const [url] = await login.match(new RegExp(`${issuer.url}${path}\\S*`));
      await browse(url);
      await login.exited;
      assert.equal(login.process.exitCode, 0, login.output);
      const { client } = await connect(t, () => person.connect(server.url));
      assert.equal(await echo(client), "h\u00e9");
      assert.equal(issuer.authorizations, 1);
    });
  }

  test("without a browser opens the page that connect prints", async (t) => {
    const { issuer, server, person } = await rig(t);
    Object.assign(person.env, { BROWSER: "", DISPLAY: "" });
    const opened = connect(t, () => person.connect(server.url));
    const [url] = await until("an address", () => person.logs[0]?.match(new RegExp(`${issuer.url}/auth\\?[^"\\s]*`)));
    await browse(url.replaceAll("\\u0026", "&"));
    assert.equal(await echo((await opened).client), "h\u00e9");
  });

  test("has tokens that nobody else can read, and they are in no log", async (t) => {
    const { server, person } = await rig(t);
    const { client } = await connect(t, () => person.connect(server.url, "--log-level", "debug"));
    assert.equal(await echo(client), "h\u00e9");
    const kept = person.files().filter(({ text }) => /eyJ[\w-]{10}/.test(text));
    assert.notDeepEqual(kept, []);
    for (const { path, mode } of kept) assert.equal(mode & 0o077, 0, path);
    for (const log of person.logs) assert.doesNotMatch(log, /eyJ[\w-]{10}|[?&](code|code_verifier)=/);
  });
});

/** A server that keeps what comes in the header Authorization. */
async function trapped(t) {
  const trap = { authorized: [] };
  const server = http.createServer((req, res) => {
    if (req.headers.authorization) trap.authorized.push(req.url);
    res.writeHead(404).end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  t.after(() => server.close());
  return Object.assign(trap, { url: `http://127.0.0.1:${server.address().port}/mcp` });
}

describe("serve", { concurrency: 2 }, () => {
  /** serve with the server as its upstream docs, which somebody has to log in to. */
  async function service(t, { server, person }, auth) {
    const file = person.file("mcp-proxy.json", JSON.stringify({ upstreams: { docs: { url: server.url, auth } } }));
    const proxy = await configured(t, { upstreams: { docs: { url: server.url, auth } } }, { env: person.env });
    const open = async () => (await connect(t, () => remote(`http://${proxy.host}/mcp`))).client;
    return { proxy, file, open };
  }

  test("never opens a browser, and says who is to log in", async (t) => {
    const the = await rig(t);
    const { proxy, file, open } = await service(t, the, { oauth: {} });
    await assert.rejects(open(), /needs a login: mcp-proxy login docs/);
    assert.deepEqual(the.person.browsed, []);
    await the.person.run(["login", "docs", "--config", file]);
    const client = await until("a connection", () => open().catch(() => false));
    assert.equal(await echo(client), "h\u00e9");
    await the.issuer.revoke();
    the.server.retire();
    await assert.rejects(echo(client), /needs a login: mcp-proxy login docs/);
    await the.person.run(["login", "docs", "--config", file]);
    const again = await until("another", async () => echo(await open()).catch(() => false));
    assert.equal(again, "h\u00e9");
    assert.equal(the.person.browsed.length, 2);
    assert.doesNotMatch(proxy.output, /eyJ[\w-]{10}/);
  });
});

/** A program that the issuer knows beforehand: what it is registered as, and what its configuration says. */
const programs = {
  "with a secret": () => secret("client_secret_basic"),
  "with a secret that is posted": () => secret("client_secret_post"),
  "with a key": async () => {
    const { client, privateKey } = await keyed("ES256");
    const pem = await exportPKCS8(privateKey);
    return { client, config: (person) => ({ clientId: "ci", privateKeyFile: person.file("key.pem", pem) }) };
  },
  "with a key for RSA, as a JWK": async () => {
    const { client, privateKey } = await keyed("RS256");
    const jwk = { ...(await exportJWK(privateKey)), alg: "RS256", kid: "own" };
    return { client, config: (person) => ({ clientId: "ci", privateKeyFile: person.file("key", JSON.stringify(jwk)) }) };
  },
};

function secret(token_endpoint_auth_method) {
  const client_secret = "a secret/with: signs+";
  const client = { client_id: "ci", client_secret, token_endpoint_auth_method };
  return { client, config: (person) => ({ clientId: "ci", clientSecretFile: person.file("secret", client_secret) }) };
}

async function keyed(alg) {
  const { publicKey, privateKey } = await generateKeyPair(alg, { extractable: true });
  const jwk = { ...(await exportJWK(publicKey)), alg, kid: "own", use: "sig" };
  const client = {
    client_id: "ci",
    token_endpoint_auth_method: "private_key_jwt",
    token_endpoint_auth_signing_alg: alg,
    jwks: { keys: [jwk] },
  };
  return { client, privateKey };
}

const ofPrograms = { grant_types: ["client_credentials"], redirect_uris: [], response_types: [] };

/** serve, which proves itself to the server with clientCredentials. */
async function machine(t, { client, config }, options) {
  const the = await rig(t, { clients: [{ ...client, ...ofPrograms }], ...options });
  const auth = { clientCredentials: await config(the.person, the.issuer) };
  const proxy = await configured(t, { upstreams: { docs: { url: the.server.url, auth } } }, { env: the.person.env });
  const open = async () => (await connect(t, () => remote(`http://${proxy.host}/mcp`))).client;
  return { ...the, proxy, open };
}

describe("a program", { concurrency: 2 }, () => {
  for (const [name, make] of Object.entries(programs)) {
    test(name, async (t) => {
      const { issuer, server, proxy, open } = await machine(t, await make());
      const clients = await five(open);
      const said = await Promise.all(clients.flatMap((client) => Array.from({ length: 10 }, () => echo(client))));
      assert.deepEqual(said, Array(50).fill("h\u00e9"));
      assert.equal(issuer.asked["/token"], 1);
      assert.equal(server.calls[0].claims.sub, "ci");
      assert.doesNotMatch(proxy.output, /eyJ[\w-]{10}|secret/);
    });
  }

  test("has tokens that are fetched anew before they end", async (t) => {
    const { issuer, server, open } = await machine(t, await programs["with a secret"](), { ttl: 3, grace: 3 });
    const client = await open();
    for (const end = Date.now() + 7000; Date.now() < end; await sleep(20)) assert.equal(await echo(client), "h\u00e9");
    assert.ok(server.refused <= 2, `${server.refused} refused`); // who asks first has no token
    assert.ok(issuer.asked["/token"] >= 3 && issuer.asked["/token"] <= 15, `${issuer.asked["/token"]} fetches`);
  });

  test("with an assertion of somebody else's, which is renewed in its file", async (t) => {
    const { client, privateKey } = await keyed("ES256");
    const assertion = (issuer, jti) =>
      new SignJWT({ jti }).setProtectedHeader({ alg: "ES256", kid: "own" }).setIssuer("ci").setSubject("ci")
        .setAudience(issuer.url).setIssuedAt().setExpirationTime("1m").sign(privateKey);
    
    const config = async (person, issuer) => ({ assertionFile: person.file("assertion", await assertion(issuer, "1")) });
    const { issuer, server, person, open } = await machine(t, { client, config });
    const connected = await open();
    assert.equal(await echo(connected), "h\u00e9");
    person.file("assertion", await assertion(issuer, "2")); // the provider takes each one once
    server.retire();
    assert.equal(await echo(connected), "h\u00e9");
    assert.equal(issuer.asked["/token"], 2);
  });

  test("that is refused with a token just fetched says so, and does not go on asking", async (t) => {
    const { issuer, server, open } = await machine(t, await programs["with a secret"]());
    server.closed = true;
    await assert.rejects(open(), /docs rejected our credentials/);
    assert.ok(issuer.asked["/token"] <= 3, `${issuer.asked["/token"]} fetches`);
  });

  test("whose secret is wrong says so, and not which", async (t) => {
    const { client } = await programs["with a secret"]();
    const config = (person) => ({ clientId: "ci", clientSecretFile: person.file("secret", "hunter2") });
    const { proxy, server, open } = await machine(t, { client, config });
    await assert.rejects(open(), (err) => assert.match(err.message, /docs/) ?? true);
    assert.deepEqual(server.calls, []);
    assert.doesNotMatch(proxy.output, /hunter2/);
  });
});

describe("another mcp-proxy", { concurrency: 2 }, () => {
  for (const [scheme, path] of [["http", "/mcp"], ["http", "/sse"], ["ws", "/ws"]]) {
    test(`at ${scheme}:…${path}`, async (t) => {
      const issuer = await authorizationServer(t);
      const port = await freePort();
      const publicURL = `http://127.0.0.1:${port}`;
      const jwt = [{ issuer: issuer.url, audience: [publicURL, publicURL + path], scopes: ["mcp"] }];
      const upstreams = { main: { command: process.execPath, args: [here("server.mjs")] } };
      await configured(t, { publicURL, auth: { jwt }, upstreams }, { port });
      const person = new Person(t);
      const { client } = await connect(t, () => person.connect(`${scheme}://127.0.0.1:${port}${path}`));
      assert.equal(await echo(client), "h\u00e9");
      assert.equal(issuer.authorizations, 1);
    });
  }
});

test("the authorization server of the TypeScript SDK", async (t) => {
  const example = "node_modules/@modelcontextprotocol/sdk/dist/esm/examples/server/simpleStreamableHttp.js";
  const env = { ...process.env, MCP_PORT: await freePort(), MCP_AUTH_PORT: await freePort() };
  const server = new Child(t, process.execPath, [here(example), "--oauth", "--oauth-strict"], { env });
  await server.match(/listening on port/);
  const person = new Person(t);
  const { client } = await connect(t, () => person.connect(`http://localhost:${env.MCP_PORT}/mcp`));
  assert.match(await call(client, "greet", { name: "Ada" }), /Ada/);
  assert.equal(person.browsed.length, 1);
});
