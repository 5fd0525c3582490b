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
import { Pool, ended, goneWithin, handlers, opens, proxied, starts, stdioServer, tools } from "./waiting.mjs";

const stopGrace = 4; // s; more than the default, for machines that have much to do
const patient = { stopGrace: `${stopGrace}s`, startTimeout: "2m" };
const settingsOf = (more) => ({ drain: "1s", shutdownGrace: `${stopGrace + 2}s`, ...more });

/** Before 1.27 python-sdk joined its handlers when its transport closed (PR #2306). */
const old = (release) => release.localeCompare("1.27", "en", { numeric: true }) < 0;
const oneEra = (release) => release.startsWith("1.");
const bothEras = (release) => !oneEra(release);

// What a client does, or what is done to it; how many answers its call gets, if it
// is not suspended; and for how long that is no reason for a server to end.
const vanishes = { act: ({ client }) => client.wire.vanish(), answers: 0 };
const halfCloses = { act: ({ client }) => client.wire.halfClose(), answers: 1, delay: 1 };
const closes = { act: ({ client }) => client.wire.close(), answers: 0 };
const resets = { act: ({ client }) => client.wire.reset(), answers: 0 };
const deletes = { act: ({ client }) => client.wire.remove(), answers: 1 };
const expires = { act: ({ client }) => client.wire.drop(), answers: 0, delay: 1, settings: { sessionIdle: "1s" } };
const cancels = { act: ({ client }) => client.wire.drop(), answers: 0, stays: true, silent: true, handlers: ["sleeping"] };
const stops = { act: ({ proxy }) => proxy.process.kill("SIGTERM"), answers: 1, ends: true };
const drains = { ...stops, delay: 2 };
const loses = { act: ({ proxy }) => proxy.process.kill("SIGKILL"), answers: 0, link: true };

const connected = {
  stdio: { "half-close": halfCloses, killed: vanishes, SIGTERM: stops, "lost link": loses },
  WebSocket: { "close 1000": closes, reset: resets, SIGTERM: drains, "lost link": loses },
};
const legacy = { ...connected, HTTP: { DELETE: deletes, expiry: expires, SIGTERM: drains, "lost link": loses } };

// What is kept for a principal waits 30 s for a proxy to come back.
const modern = { ...connected, HTTP: { killed: cancels, SIGTERM: drains, "lost link": { ...loses, delay: 30 } } };

// Each handler alone is for the release that the most people have; with the others
// they all wait at once. INTEROP_FULL=1 means more of both, which takes long.
const all = Object.keys(handlers);
const full = process.env.INTEROP_FULL;
const newest1 = pythons.findLast(oneEra);
const waitsOf = (release) => (release === newest1 || full ? all : ["all of it"]);

/** Who meets whom: the eras of clients and their ways to leave, and what servers are pinned to. */
const meetings = [
  { of: () => true, client: "legacy", ways: legacy },
  { of: (release) => release === newest1, client: "modern", ways: modern, waits: ["eliciting"] },
  { of: bothEras, client: "modern", ways: modern, waits: ["sleeping"] },
  { of: bothEras, client: "modern", ways: modern, waits: ["eliciting"], pinned: "legacy", over: ["stdio"] },
  { of: bothEras, client: "legacy", ways: legacy, waits: ["eliciting"], pinned: "modern", over: ["stdio"] },
];

/** A server that speaks modern is nobody's, and is kept for the next one if there is a proxy. */
function keeping(client, { link, ends }) {
  if (link) return { delay: 30 };
  return { stays: client !== "stdio" && !ends };
}

function* cells() {
  for (const release of pythons) {
    for (const { of, client: era, ways, waits, pinned, over } of meetings) {
      if (!of(release)) continue;
      for (const server of (!full && over) || Object.keys(servers)) {
        for (const [client, hows] of Object.entries(ways)) {
          for (const [way, what] of Object.entries(hows)) {
            for (const handler of what.handlers ?? waits ?? waitsOf(release)) {
              const at = pinned ? `${release} as ${pinned}` : release;
              const name = `${at}, ${server}; ${era} ${client}, ${way}; ${handler}`;
              const kept = (pinned ?? (bothEras(release) && era)) === "modern" && keeping(client, what);
              yield { name, release, pinned, server, era, client, handler, ...what, ...kept };
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
    settle() {},
  },
  HTTP: {
    use: (t, release, job) => pool.use(release, job),
    over: ({ session }, server) => !session || ended(server, session),
    settle: ({ upstream }) => fetch(`${upstream.url}/none`).then((response) => response.text()),
  },
};

describe("a client leaves", { concurrency: 28 }, () => {
  for (const release of pythons) {
    for (const kind of Object.keys(servers)) {
      for (const handler of waitsOf(release)) test(`${release}, ${kind}; no proxy; ${handler}`, (t) => control(t, release, kind, handler));
    }
  }
  const longestFirst = (a, b) => (b.delay ?? 0) - (a.delay ?? 0);
  for (const cell of [...cells()].sort(longestFirst)) test(cell.name, (t) => leave(t, cell));
});

// Who leaves a shared server, and how, while another's call is at work there.
const leavers = [
  ["WebSocket", "legacy", { "close 1000": closes, reset: resets }],
  ["HTTP", "legacy", { DELETE: deletes, expiry: expires }],
  ["WebSocket", "modern", { "close 1000": closes, reset: resets }],
];

// What the other one does meanwhile. Two may be asked something at a time only by a
// server that can say whom it asks.
const others = { holds: { server: ["stdio", "HTTP"], stay: holds }, "is asked": { server: ["HTTP"], stay: isAsked } };

describe("one of two clients leaves a shared server", { concurrency: 28 }, () => {
  for (const release of full ? pythons.filter((release) => !old(release)) : [newest1]) {
    for (const [client, era, ways] of leavers) {
      for (const [way, what] of Object.entries(ways)) {
        for (const [other, { server, stay }] of Object.entries(others)) {
          for (const kind of server) {
            const name = `${release}, ${kind}; ${era} ${client}, ${way}; the other ${other}`;
            const cell = { name, release, server: kind, client, era, stay, ...what };
            test(name, (t) => servers[kind].use(t, release, (server) => share(t, cell, server)));
          }
        }
      }
    }
  }
});

async function share(t, { name, server: kind, client: via, era, stay, act, settings }, server) {
  const main = { ...server.upstream, ...patient, session: "shared", era: "legacy" };
  const { proxy, open } = await starts.run(() => proxied(t, via, { main }, settingsOf(settings)));
  const { record } = server;
  try {
    const [a, b] = [await open(era), await opens.WebSocket(proxy)];
    const { pid, calls } = await starts.run(() => calling(a, server, "eliciting", name));
    await b.initialize();
    await stay(b, `${name}, other`, async () => {
      await act({ client: a });
      await record.noted(calls[0].call, "cleared", 2 * stopGrace);
    });
    await isAsked(b, `${name}, again`, () => {});
    assert.ok(!gone(pid));
    await proxy.stop();
    await servers[kind].settle(server);
    assert.deepEqual(outcries(server), []);
    return true;
  } catch (err) {
    throw new Error(`${err.message}\n${record.story(name)}\n${proxy.text()}`, { cause: err });
  }
}

/** Has a call at work while the others go on, and then finishes it with one more. */
async function holds(client, call, meanwhile) {
  const id = client.call("hold", call);
  await client.message((m) => m.params?.progressToken === call);
  await meanwhile();
  assert.deepEqual(client.answers(id), []);
  client.call("release", call);
  assert.equal(text(await client.answered(id)), "released");
}

/** Is asked something, and answers when the others are done. */
async function isAsked(client, call, meanwhile) {
  const id = client.call("elicit", call);
  const { id: question } = await client.message((m) => m.params?.message === call);
  await meanwhile();
  assert.deepEqual(client.answers(id), []);
  client.answer(question, { action: "accept", content: { name: call } });
  assert.equal(text(await client.answered(id)), call);
}

function text({ result, error }) {
  assert.ok(result && !result.isError, JSON.stringify(result ?? error));
  return result.content[0].text;
}

/** A cell. */
async function leave(t, cell) {
  const known = old(cell.release) ? await knownOf(cell) : []; // before a server is held for it
  await servers[cell.server].use(t, cell.release, (server) => leaveBehind(t, cell, server, known));
}

/** Resolves to whether the server is as it was. */
async function leaveBehind(t, cell, server, known) {
  const rig = await atWork(t, cell, server);
  await cell.act(rig);
  const found = await end(rig, cell);
  const heard = await said(rig, cell);
  await rig.proxy.stop(); // what it has kept until now ends, too
  await servers[cell.server].settle(server);
  found.push(...outcries(server));
  const problems = [...new Set([...found.filter((problem) => !known.includes(problem)), ...heard])];
  if (problems.length > 0) assert.fail(`${problems.join("; ")}\n${server.record.story(cell.name)}\n${rig.text()}`);
  return found.length === 0;
}

/** A proxy, a client, and its call, which waits in the server. */
function atWork(t, { name, client: via, era, handler, link, settings, pinned }, server) {
  return starts.run(async () => {
    const main = { ...server.upstream, ...patient, era: pinned };
    const { proxy, host, open } = await proxied(t, via, { main }, settingsOf({ link, ...settings }));
    const client = await open(era);
    const at = await calling(client, server, handler, name);
    const { log, text } = host ?? proxy;
    const before = log().length;
    return { server, proxy, host, client, ...at, text, log: () => log().slice(before) };
  });
}

/** Makes the calls of a handler, one after the other is waiting. */
async function calling(client, { record }, handler, name) {
  await client.initialize();
  const calls = [];
  for (const tool of handlers[handler]) {
    const call = `${name}; ${tool}`;
    const id = client.call(tool, call);
    await client.message((m) => m.method === tools[tool] || m.result?.resultType === "input_required", 60);
    calls.push({ id, call, suspended: client.answers(id).length > 0 });
  }
  const { pid, session } = await record.noted(calls[0].call, "waits");
  return { calls, pid, session };
}

/** Waits for what is left of calls to end, and returns what is wrong with that. */
async function end({ server, calls, pid, session }, { server: kind, delay = 0, stays }) {
  const { record } = server;
  const seconds = delay + 2 * stopGrace;
  const soon = (what, probe, within) => until(what, probe, within).catch(() => false);
  const over = stays || (await soon("the end", () => servers[kind].over({ pid, session }, server), seconds));
  const cleared = () => calls.every(({ call }) => record.of(call, "cleared"));
  const peace = await soon("the handlers' ends", cleared, gone(pid) ? 0 : seconds);
  await servers[kind].settle(server);
  const last = record.lines().find(({ event }) => event === "ended");
  return [
    !over && "the server is still there",
    !peace && "a handler did not clear up",
    ...outcries(server),
    gone(pid) && !last && "the server was killed",
    last?.error && "the server ended with an error",
  ].filter(Boolean);
}

/** What a server said on stderr that it should not have to say. */
function outcries({ record }) {
  const words = record.stderr();
  return [
    /ExceptionGroup|unhandled errors in a TaskGroup/.test(words) && "nested errors",
    /Traceback/.test(words) && "a traceback",
  ].filter(Boolean);
}

/** What is wrong with what the proxy said, to the client and in the log. */
async function said({ client, calls, proxy, host, log: all }, { answers, silent }) {
  const log = () => all().filter(({ msg }) => !msg.startsWith("upstream stderr") && msg !== "shutting down");
  if (!silent) await until("a line in the log", () => log().length > 0, 5).catch(() => {});
  const wrong = calls.filter(({ id, suspended }) => client.answers(id).length !== (suspended ? 1 : answers));
  const lines = log().length;
  const code = proxy.process.exitCode;
  return [
    ...wrong.map(({ id, call }) => `answers to ${call}: ${JSON.stringify(client.answers(id))}`),
    lines !== (silent ? 0 : 1) && `${lines} lines in the log of the ${host ? "host" : "proxy"}`,
    code && `the proxy exited with ${code}`,
  ].filter(Boolean);
}

/** What the servers do by themselves. */
async function control(t, release, kind, handler) {
  const problems = await without(release, kind, handler);
  if (old(release)) t.diagnostic(problems.join("; ") || "in peace");
  else assert.deepEqual(problems, []);
}

/** What an old release is known for: what waits beside others may fare as it does alone. */
async function knownOf({ release, server, handler }) {
  const alone = handler === "all of it" ? all : [handler];
  return (await Promise.all(alone.map((handler) => without(release, server, handler)))).flat();
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
