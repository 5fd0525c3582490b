// Real peers vanish while calls are at work.
//
// A python-sdk server before 1.27 joined its handlers when its transport closed
// and fell over in a pile of nested exceptions. Whatever the release: when its
// client vanishes nothing may hang, no process may stay, and our log has one
// line for it.
//
// When a remote server vanishes, or the host that a server is behind, each call
// gets one error, and what comes back is used again.

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { call, connect, connectionClosed, hold, remote } from "./client.mjs";
import { lists, peers } from "./peers.mjs";
import { Child, behind, binary, configured, gone, here, python, pythons, records, serve, until } from "./proxy.mjs";

// How a client reaches the server, and how it leaves.
const ends = {
  "stdio, client killed": { over: stdio, leave: kill },
  "stdio, client closes": { over: stdio, leave: close },
  "WebSocket, client killed": { over: websocket, leave: kill },
  "WebSocket, client closes": { over: websocket, leave: close },
  "HTTP, client deletes its session": { over: http, leave: close },
};

for (const release of pythons) {
  describe(`python-sdk ${release}`, () => {
    for (const [name, end] of Object.entries(ends)) {
      for (const tool of ["work", "ask"]) {
        test(`${name} during ${tool}`, (t) => vanish(t, release, tool, end));
      }
    }
  });
}

async function vanish(t, release, tool, { over, leave }) {
  const server = [python(release), here("python/server.py")];
  const { target, proxy } = await over(t, server);
  const client = new Child(t, process.execPath, [here("python/client.mjs"), tool, ...target], {
    stdio: ["pipe", "pipe", "pipe"],
  });
  const [, pid] = await client.match(/in flight (\d+)/);
  assert.ok(!gone(pid));
  const before = records((proxy ?? client).output).length;

  await leave(client);
  await until("the server to be gone", () => gone(pid));
  await (proxy ? ended(proxy) : client.closed); // the proxy has the client's stderr
  const { output } = proxy ?? client;
  assert.doesNotMatch(output, /Traceback|Exception/);
  const ours = records(output)
    .slice(before)
    .filter(({ msg }) => !msg.startsWith("upstream stderr") && msg !== "shutting down");
  assert.equal(ours.length, 1, JSON.stringify(ours));
  assert.equal(ours[0].level, "INFO");
}

/** Waits until a proxy has said all that it will, and stops it. */
async function ended(proxy) {
  await until("a word about the client", () => proxy.output.includes("client disconnected"));
  await proxy.stop();
}

function stdio(t, server) {
  return { target: [binary, "stdio", "--", ...server] };
}

async function websocket(t, server) {
  const proxy = await serve(t, ["--", ...server]);
  return { proxy, target: [`ws://${proxy.host}/ws`] };
}

async function http(t, server) {
  const proxy = await serve(t, ["--", ...server]);
  return { proxy, target: [`http://${proxy.host}/mcp`] };
}

function kill(client) {
  client.process.kill("SIGKILL");
}

async function close(client) {
  client.process.stdin.end();
  await client.exited;
}

const clients = { websocket: (host) => remote(`ws://${host}/ws`), http: (host) => remote(`http://${host}/mcp`) };
const links = Object.keys(behind).filter((way) => way.endsWith("link"));

for (const way of links) test(`${way}, proxy killed`, (t) => lostProxy(t, way));
for (const [over, open] of Object.entries(clients)) {
  for (const way of links) test(`${way}, host killed, client over ${over}`, (t) => lostHost(t, way, open));
  for (const name of Object.keys(peers)) {
    test(`${name}, killed, client over ${over}`, (t) => lostServer(t, name, open));
    test(`${name}, killed between two calls, client over ${over}`, (t) => lostUnseen(t, name, open));
  }
}

async function lostProxy(t, way) {
  const proxy = await behind[way](t, [process.execPath, here("server.mjs")]);
  const { client, frames } = await connect(t, () => clients.websocket(proxy.host));
  const pid = await call(client, "pid");
  await hold(client, frames);
  proxy.process.kill("SIGKILL");
  await until("the server to be gone", () => gone(pid));
  assert.equal(proxy.link.child.process.exitCode, null);
}

async function lostHost(t, way, open) {
  const proxy = await behind[way](t, [process.execPath, here("server.mjs")]);
  const session = await connect(t, () => open(proxy.host));
  const { client, frames } = session;
  const pid = await call(client, "pid");
  await lists(client); // who never asked is not told of changes
  const held = [await hold(client, frames), await hold(client, frames)];
  const from = frames.length;

  await proxy.link.kill();
  await oneErrorEach(held, "link lost");
  await until("the server to be gone", () => gone(pid));
  proxy.link.start();
  await until("word of all changes", () => changes(frames.slice(from)).length >= 3);
  assert.equal(await call(client, "echo", { text: "back" }), "back");
  await lists(client);
  assert.deepEqual(changes(frames.slice(from)).sort(), ["prompts", "resources", "tools"]);
  assert.equal(proxy.process.exitCode, null);
}

async function lostServer(t, name, open) {
  const { peer, proxy, client, frames } = await connected(t, name, open);
  const held = [await hold(client, frames, peer.hold), await hold(client, frames, peer.hold)];
  peer.child.process.kill("SIGKILL");
  // Who could resume finds nobody there.
  await oneErrorEach(held, peer.resumable ? "connection refused" : "connection lost");

  await peers[name](t, peer.port);
  await call(client, peer.work.name, peer.work.arguments);
  assert.equal(proxy.process.exitCode, null);
}

async function lostUnseen(t, name, open) {
  const { peer, client } = await connected(t, name, open);
  await call(client, peer.work.name, peer.work.arguments);
  peer.child.process.kill("SIGKILL");
  await peer.child.exited;

  await peers[name](t, peer.port);
  await call(client, peer.work.name, peer.work.arguments);
}

async function connected(t, name, open) {
  const peer = await peers[name](t);
  const proxy = await configured(t, { upstreams: { main: { url: peer.url } } });
  return { peer, proxy, ...(await connect(t, () => open(proxy.host))) };
}

/** Each call gets one error, and that one. */
async function oneErrorEach(held, cause) {
  for (const { result } of held) await assert.rejects(result, connectionClosed("main", cause));
  for (const { answers } of held) assert.equal(answers().length, 1);
}

/** The lists that a client was told to have changed. */
function changes(frames) {
  return frames.flatMap(([, m]) => m.method?.match(/notifications\/(\w+)\/list_changed/)?.[1] ?? []);
}
