// What the tests of leaving clients share: python/waiting.py as a server, over
// stdio or HTTP, what it noted of a call, and the proxy in front of it.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Client, httpWire, stdioWire, webSocketWire } from "./raw.mjs";
import { Child, binary, directory, gone, here, python, records, serve, until } from "./proxy.mjs";

/** Tools of the server, and what a client hears when one waits. */
export const tools = {
  sleep: "notifications/progress",
  sample: "sampling/createMessage",
  elicit: "elicitation/create",
  roots: "roots/list",
};

/** What handlers do while they wait, by the tools that are called. */
export const handlers = {
  sleeping: ["sleep"],
  sampling: ["sample"],
  eliciting: ["elicit"],
  roots: ["roots"],
  "all of it": Object.keys(tools),
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

  /** All that there is to read when something went wrong with calls whose names begin so. */
  story(name) {
    const lines = this.lines().filter(({ call }) => call === undefined || call.startsWith(name));
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

  /** Runs job with a server, which the next one gets if job resolves to true. */
  use(release, job) {
    const idle = (this.idle[release] ??= []);
    this.bounds[release] ??= new Bound(4);
    return this.bounds[release].run(async () => {
      const server = idle.pop() ?? (await this.start(release));
      server.record.read = text(`${server.record.file}.stderr`).length;
      const again = await job(server).catch(async (err) => {
        await server.stop();
        throw err;
      });
      if (again) idle.push(server);
      else await server.stop();
    });
  }

  async start(release) {
    const ends = [];
    const stop = async () => {
      for (const end of ends.toReversed()) await end();
    };
    return { ...(await httpServer({ after: (end) => ends.push(end) }, release)), stop };
  }

  async stop() {
    for (const server of Object.values(this.idle).flat()) await server.stop();
  }
}

/** Whether a server over HTTP was told that a session is over. To ask it might disturb it. */
export function ended({ record }, session) {
  return record.stderr().includes(`Terminating session: ${session}`);
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
  if (host) await proxy.match(/"link up"/);
  return { proxy, host, open: (era) => opens[kind](proxy, era) };
}

function stdioProxy(t, file) {
  return logging(new Child(t, binary, ["stdio", "--config", file], { stdio: ["pipe", "pipe", "pipe"] }));
}

/** A client of a proxy, by how it is connected. */
export const opens = {
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
