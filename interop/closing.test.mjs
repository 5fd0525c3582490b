// A python-sdk server has a call at work when its client vanishes.
//
// Before 1.27 such a server joined its handlers when its transport closed and
// fell over in a pile of nested exceptions. Whatever the release: nothing may
// hang, no process may stay, and our log has one line for it.

import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { describe, test } from "node:test";
import { Child, binary, gone, here, records, serve, until } from "./proxy.mjs";

const releases = readdirSync(here("python")).flatMap((name) => name.match(/^mcp-(.*)\.txt$/)?.[1] ?? []);

// How a client reaches the server, and how it leaves.
const ends = {
  "stdio, client killed": { over: stdio, leave: kill },
  "stdio, client closes": { over: stdio, leave: close },
  "WebSocket, client killed": { over: websocket, leave: kill },
  "WebSocket, client closes": { over: websocket, leave: close },
  "HTTP, client deletes its session": { over: http, leave: close },
};

for (const release of releases) {
  describe(`python-sdk ${release}`, () => {
    for (const [name, end] of Object.entries(ends)) {
      for (const tool of ["work", "ask"]) {
        test(`${name} during ${tool}`, (t) => vanish(t, release, tool, end));
      }
    }
  });
}

async function vanish(t, release, tool, { over, leave }) {
  const server = [here(`.venv-${release}/bin/python`), here("python/server.py")];
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
