// What the tests of leaving clients share: python/waiting.py as a server, over
// stdio or HTTP, what it noted of a call, and the proxy in front of it.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Client, httpWire, stdioWire, webSocketWire } from "./raw.mjs";
import { Child, binary, directory, gone, here, python, records, serve, until } from "./proxy.mjs";

/** The tool that each handler is, and what its client hears when the handler waits. */
export const handlers = {
  sleeping: { tool: "sleep", heard: "notifications/progress" },
  sampling: { tool: "sample", heard: "sampling/createMessage" },
  eliciting: { tool: "elicit", heard: "elicitation/create" },
  roots: { tool: "roots", heard: "roots/list" },
};

const script = here("python/waiting.py");

/** What a server notes, in a file. */
export class Record {
  constructor(t) {
    this.file = join(directory(t), "record");
    this.env = { RECORD: this.file };
    this.read = 0; // of stderr, by those before
  }

  lines() {
    return text(this.file).split("\n").filter(Boolean).map((line) => JSON.parse(line));
  }

  /** What was noted of a call, or undefined. */
  of(call, event) {
    return this.lines().find((line) => line.call === call && line.event === event);
  }

  noted(call, event, seconds) {
    return until(`${call} ${event}`, () => this.of(call, event), seconds);
  }

  stderr() {
    return text(`${this.file}.stderr`).slice(this.read);
  }

  /** All that there is to read when something went wrong with a call. */
  story(call) {
    const lines = this.lines().filter((line) => line.call === call || line.event === "ended");
    return [...lines.map((line) => JSON.stringify(line)), this.stderr()].join("\n");
  }
}

function text(file) {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return "";
  }
}

/** A server as a command. */
export function stdioServer(t, release) {
  const record = new Record(t);
  return { record, upstream: { command: python(release), args: [script], env: record.env } };
}

/** A server over HTTP. */
export async function httpServer(t, release) {
  const record = new Record(t);
  const env = { ...process.env, ...record.env };
  const listening = /running on (http:\/\/127\.0\.0\.1:\d+)/;
  return starts.run(async () => {
    const child = new Child(t, python(release), [script, "0"], { env });
    const [, url] = await until("an HTTP server", () => record.stderr().match(listening), 60);
    return { record, child, upstream: { url: `${url}/mcp` } };
  });
}

/** Bounds how many at once do what takes a processor: the first come first. */
export class Bound {
  waiting = [];

  constructor(room) {
    this.room = room;
  }

  async run(job) {
    if (this.room === 0) await new Promise((resolve) => this.waiting.push(resolve));
    else this.room--;
    try {
      return await job();
    } finally {
      const next = this.waiting.shift();
      if (next) next();
      else this.room++;
    }
  }
}

/** Whoever has Python start does it in here. */
export const starts = new Bound(3);

/** Servers over HTTP, a few of each release; a test has one for itself. */
export class Pool {
  idle = {};
  bounds = {};
  ends = [];

  /** Runs job with a server, which the next one gets if job resolves to true. */
  use(release, job) {
    this.bounds[release] ??= new Bound(4);
    return this.bounds[release].run(async () => {
      const idle = (this.idle[release] ??= []);
      const server = idle.pop() ?? (await httpServer({ after: (end) => this.ends.push(end) }, release));
      server.record.read = text(`${server.record.file}.stderr`).length;
      if (await job(server)) idle.push(server);
    });
  }

  async stop() {
    for (const end of this.ends.toReversed()) await end();
  }
}

/** Whether a server over HTTP has ended a session. */
export async function ended(url, session) {
  const response = await fetch(url, {
    method: "POST",
    headers: {
      "Content-Type": "application/json",
      Accept: "application/json, text/event-stream",
      "Mcp-Session-Id": session,
      "MCP-Protocol-Version": "2025-11-25",
    },
    body: JSON.stringify({ jsonrpc: "2.0", id: "probe", method: "ping" }),
  });
  await response.body?.cancel();
  return response.status === 404;
}

/**
 * A proxy in front of upstreams, whose clients are opened by open(). With link
 * the upstreams are at a host of their own, on a Unix link.
 */
export async function proxied(t, kind, upstreams, { link, ...settings } = {}) {
  const dir = directory(t);
  let host;
  if (link) {
    const url = `unix://${join(dir, "link.sock")}`;
    host = logging(new Child(t, binary, ["host", "--listen", url, "--config", config(dir, "host", { upstreams })]));
    await host.match(/listening on/);
    upstreams = undefined;
    settings.links = { away: { dial: url } };
  }
  const file = config(dir, "proxy", { ...settings, upstreams });
  const proxy = kind === "stdio" ? stdioProxy(t, file) : logging(await serve(t, ["--config", file]));
  if (host && kind !== "stdio") await proxy.match(/"link up"/);
  return { proxy, host, open: (era) => opens[kind](proxy, era) };
}

function stdioProxy(t, file) {
  return logging(new Child(t, binary, ["stdio", "--config", file], { stdio: ["pipe", "pipe", "pipe"] }));
}

const opens = {
  stdio: async (proxy, era) => new Client(stdioWire(proxy), era),
  WebSocket: async ({ host }, era) => new Client(await webSocketWire(host), era),
  HTTP: async ({ host }, era) => new Client(httpWire(`http://${host}/mcp`), era),
};

function config(dir, name, value) {
  const file = join(dir, `${name}.json`);
  writeFileSync(file, JSON.stringify(value));
  return file;
}

/** A child whose log is what it wrote to stderr, and nothing else. */
function logging(child) {
  let log = child.output;
  child.process.stderr.on("data", (data) => (log += data));
  child.text = () => log;
  child.log = () => records(log);
  return child;
}

/** Waits until a process is gone; whether it was so in time. */
export function goneWithin(pid, seconds) {
  return until("the end", () => gone(pid), seconds).then(
    () => true,
    () => false,
  );
}
