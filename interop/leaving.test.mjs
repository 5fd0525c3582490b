// A client leaves while a handler waits, in every way, and the handler has
// something to clear up. One table of what there is, one function for a cell.
//
// python-sdk 1.x answers a request twice, and dies of it in nested exception
// groups, if the handler is woken by an error for its question and is cancelled
// as well. So each server must end in peace, or, if it is of an old release, no
// worse than without a proxy.

import assert from "node:assert/strict";
import { after, describe, test } from "node:test";
import { Client, httpWire, stdioWire } from "./raw.mjs";
import { Child, gone, pythons, until } from "./proxy.mjs";
import { Pool, ended, goneWithin, handlers, proxied, starts, stdioServer } from "./waiting.mjs";

const stopGrace = 2; // s, the default

/** Before 1.27 python-sdk joined its handlers when its transport closed (PR #2306). */
const old = (release) => release.localeCompare("1.27", "en", { numeric: true }) < 0;
const oneEra = (release) => release.startsWith("1.");

// What a client does, or what is done to it; how many answers its call gets, if it
// is not suspended; and for how long that is no reason for a server to end.
const vanishes = { act: ({ client }) => client.wire.vanish(), answers: 0 };
const halfCloses = { act: ({ client }) => client.wire.halfClose(), answers: 1, delay: 1 };
const closes = { act: ({ client }) => client.wire.close(), answers: 0 };
const resets = { act: ({ client }) => client.wire.reset(), answers: 0 };
const deletes = { act: ({ client }) => client.wire.remove(), answers: 1 };
const expires = { act: ({ client }) => client.wire.drop(), answers: 0, delay: 1, settings: { sessionIdle: "1s" } };
const cancels = { act: ({ client }) => client.wire.drop(), answers: 0, goesOn: true, handlers: ["sleeping"] };
const stops = { act: ({ proxy }) => proxy.process.kill("SIGTERM"), answers: 1 };
const drains = { ...stops, delay: 2 };
const loses = { act: ({ proxy }) => proxy.process.kill("SIGKILL"), answers: 0, link: true };

const connected = {
  stdio: { "half-close": halfCloses, killed: vanishes, SIGTERM: stops, "lost link": loses },
  WebSocket: { "close 1000": closes, reset: resets, SIGTERM: drains, "lost link": loses },
};
const legacy = { ...connected, HTTP: { DELETE: deletes, expiry: expires, SIGTERM: drains, "lost link": loses } };

// What is kept for a principal waits 30 s for a proxy to come back.
const modern = { ...connected, HTTP: { killed: cancels, SIGTERM: drains, "lost link": { ...loses, delay: 30 } } };

const all = Object.keys(handlers);

/** Who meets whom: the clients' era and ways to leave, and what the server is pinned to. */
const meetings = [
  { of: () => true, client: "legacy", ways: legacy, waits: all },
  { of: oneEra, client: "modern", ways: modern, waits: all },
  { of: (release) => !oneEra(release), client: "modern", ways: modern, waits: ["sleeping"] },
  { of: (release) => !oneEra(release), client: "modern", ways: modern, waits: all, pinned: "legacy" },
  { of: (release) => !oneEra(release), client: "legacy", ways: legacy, waits: ["sleeping"], pinned: "modern" },
];

function* cells() {
  for (const release of pythons) {
    for (const { of, client: era, ways, waits, pinned } of meetings) {
      if (!of(release)) continue;
      for (const server of Object.keys(servers)) {
        for (const [client, all] of Object.entries(ways)) {
          for (const [way, what] of Object.entries(all)) {
            for (const handler of what.handlers ?? waits) {
              const at = pinned ? `${release} as ${pinned}` : release;
              const name = `${at}, ${server}; ${era} ${client}, ${way}; ${handler}`;
              yield { name, release, pinned, server, era, client, handler, ...what };
            }
          }
        }
      }
    }
  }
}

const pool = new Pool();
after(() => pool.stop());

const servers = {
  stdio: {
    use: (t, release, job) => job(stdioServer(t, release)),
    over: ({ pid }) => gone(pid),
  },
  HTTP: {
    use: (t, release, job) => pool.use(release, job),
    over: ({ session }, { upstream }) => !session || ended(upstream.url, session),
  },
};

describe("a client leaves", { concurrency: 14 }, () => {
  for (const release of pythons) {
    for (const kind of Object.keys(servers)) {
      for (const handler of all) test(`${release}, ${kind}; no proxy; ${handler}`, (t) => control(t, release, kind, handler));
    }
  }
  for (const cell of cells()) test(cell.name, (t) => servers[cell.server].use(t, cell.release, (server) => leave(t, cell, server)));
});

/** A cell. It resolves to whether the server is as it was. */
async function leave(t, cell, server) {
  const rig = await atWork(t, cell, server);
  await cell.act(rig);
  const found = await end(rig, cell);
  const known = old(cell.release) ? await without(cell.release, cell.server, cell.handler) : [];
  const problems = [...found.filter((problem) => !known.includes(problem)), ...said(rig, cell)];
  if (problems.length > 0) assert.fail(`${problems.join("; ")}\n${server.record.story(cell.name)}\n${rig.text()}`);
  return found.length === 0;
}

/** A proxy, a client, and its call, which waits in the server. */
function atWork(t, { name, client: via, era, handler, link, settings, pinned }, server) {
  const config = { drain: "1s", shutdownGrace: "4s", link, ...settings };
  return starts.run(async () => {
    const { proxy, host, open } = await proxied(t, via, { main: { ...server.upstream, era: pinned } }, config);
    const client = await open(era);
    const at = await calling(client, server, handler, name);
    const { log, text } = host ?? proxy;
    const before = log().length;
    return { server, proxy, host, client, ...at, text, log: () => log().slice(before) };
  });
}

async function calling(client, { record }, handler, call) {
  await client.initialize();
  const { tool, heard } = handlers[handler];
  const id = client.call(tool, call);
  await client.message((m) => m.method === heard || m.result?.resultType === "input_required", 60);
  const { pid, session } = await record.noted(call, "waits");
  return { id, call, pid, session, suspended: client.answers(id).length > 0 };
}

/** Waits for what a call leaves behind to end, and returns what is wrong with that. */
async function end({ server, call, pid, session }, { server: kind, delay = 0, goesOn }) {
  const { record } = server;
  const seconds = delay + 2 * stopGrace;
  const over = goesOn || (await until("the end", () => servers[kind].over({ pid, session }, server), seconds).catch(() => false));
  const cleared = await record.noted(call, "cleared", over && gone(pid) ? 0 : seconds).catch(() => false);
  const words = record.stderr();
  const last = record.lines().find(({ event }) => event === "ended");
  return [
    !over && "the server is still there",
    !cleared && "the handler did not clear up",
    /ExceptionGroup|unhandled errors in a TaskGroup/.test(words) && "nested errors",
    /Traceback/.test(words) && "a traceback",
    gone(pid) && !last && "the server was killed",
    last?.error && "the server ended with an error",
  ].filter(Boolean);
}

/** What is wrong with what the proxy said, to the client and in the log. */
function said({ client, id, suspended, proxy, host, log }, { answers, goesOn }) {
  const got = client.answers(id).length;
  const lines = log().filter(({ msg }) => !msg.startsWith("upstream stderr") && msg !== "shutting down");
  const code = proxy.process.exitCode;
  return [
    got !== (suspended ? 1 : answers) && `${got} answers: ${JSON.stringify(client.answers(id))}`,
    lines.length !== (goesOn ? 0 : 1) && `${lines.length} lines in the log of the ${host ? "host" : "proxy"}`,
    code && `the proxy exited with ${code}`,
  ].filter(Boolean);
}

/** What the servers do by themselves. */
async function control(t, release, kind, handler) {
  const problems = await without(release, kind, handler);
  if (old(release)) t.diagnostic(problems.join("; ") || "in peace");
  else assert.deepEqual(problems, []);
}

const seen = {};

/** What is wrong with a server's end when a client without a proxy leaves as it should. */
function without(release, kind, handler) {
  return (seen[[release, kind, handler]] ??= leaveDirectly(release, kind, handler));
}

async function leaveDirectly(release, kind, handler) {
  const ends = [];
  const t = { after: (end) => ends.push(end) };
  let problems;
  await servers[kind].use(t, release, async (server) => {
    const { client, leave } = direct[kind](t, server);
    const at = await starts.run(() => calling(client, server, handler, `no proxy ${handler}`));
    await leave(at);
    problems = await end({ server, ...at }, { server: kind, delay: stopGrace });
    return problems.length === 0;
  });
  for (const end of ends.toReversed()) await end();
  return problems;
}

const direct = {
  stdio(t, { upstream, record }) {
    const env = { ...process.env, ...record.env };
    const child = new Child(t, upstream.command, upstream.args, { stdio: ["pipe", "pipe", "pipe"], env });
    const client = new Client(stdioWire(child));
    const leave = async ({ pid }) => {
      client.wire.halfClose();
      if (!(await goneWithin(pid, stopGrace))) child.process.kill("SIGTERM");
    };
    return { client, leave };
  },
  HTTP(t, { upstream }) {
    const client = new Client(httpWire(upstream.url));
    const leave = () => {
      client.wire.drop(); // 1.x logs a traceback for a GET stream that is open at the DELETE
      return client.wire.remove();
    };
    return { client, leave };
  },
};
