// What the tests here share: where things are, and mcp-proxy as a child
// process that is watched and never outlives its test.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

/** The path of a file in this directory. */
export const here = (name) => fileURLToPath(new URL(name, import.meta.url));

/** The program under test. */
export const binary = process.env.MCP_PROXY ?? here("out/mcp-proxy");

/** The script that an npm package here starts its server with. */
export const script = (name) => here(`node_modules/@modelcontextprotocol/${name}/dist/index.js`);

/** The releases of python-sdk that are tested, the oldest first, and the interpreter that has one. */
export const pythons = readdirSync(here("python")).flatMap((name) => name.match(/^mcp-(.*)\.txt$/)?.[1] ?? []);
pythons.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
export const python = (release) => here(`.venv-${release}/bin/python`);

mkdirSync(here("out"), { recursive: true });

/**
 * A child process whose output is kept. It is killed when the test ends, if it
 * is still there.
 */
export class Child {
  output = "";

  constructor(t, command, args, options = {}) {
    this.process = spawn(command, args, { stdio: ["ignore", "pipe", "pipe"], ...options });
    this.exited = once(this.process, "exit");
    this.closed = once(this.process, "close"); // none of its descendants can write any more
    for (const stream of [this.process.stdout, this.process.stderr]) {
      stream.setEncoding("utf8").on("data", (text) => (this.output += text));
    }
    t.after(() => this.stop());
  }

  /** The match of pattern in what the child has written, as soon as there is one. */
  match(pattern) {
    return until(`output of ${this.process.spawnfile} like ${pattern}`, () => {
      if (this.process.exitCode !== null) throw new Error(`it ended:\n${this.output}`);
      return this.output.match(pattern);
    });
  }

  /** Ends the child as an operator would, and the hard way after ten seconds. */
  async stop() {
    const { exitCode, signalCode, stdout, stderr } = this.process;
    if (exitCode === null && signalCode === null) {
      this.process.kill("SIGTERM");
      const hard = setTimeout(() => this.process.kill("SIGKILL"), 10_000);
      await this.exited;
      clearTimeout(hard);
    }
    // A grandchild may hold these open; that is not to keep the test from ending.
    stdout.destroy();
    stderr.destroy();
  }
}

/** `mcp-proxy serve`, on a free port if none is given; host is HOST:PORT. */
export async function serve(t, args, { port = 0, ...options } = {}) {
  const child = new Child(t, binary, ["serve", "--listen", `127.0.0.1:${port}`, ...args], options);
  [child.host] = await child.match(/127\.0\.0\.1:[1-9]\d*/);
  return child;
}

/** `mcp-proxy serve` with a configuration. */
export function configured(t, config, options) {
  const file = join(directory(t), "mcp-proxy.json");
  writeFileSync(file, JSON.stringify(config));
  return serve(t, ["--config", file], options);
}

/**
 * The ways to a stdio server, a command: each resolves to a proxy with that one
 * upstream, which is called main. Where a host is in between, its `link` ends
 * with kill() and comes again with start(), as the same host.
 */
export const behind = {
  process: (t, command) => serve(t, ["--", ...command]),

  shared: (t, [command, ...args]) =>
    configured(t, { upstreams: { main: { command, args, session: "shared" } } }),

  async "unix link"(t, command) {
    const url = `unix://${join(directory(t), "link.sock")}`;
    const link = new Link(t, ["--listen", url], command);
    await link.child.match(/listening on/);
    const proxy = await configured(t, { links: { away: { dial: url } } });
    return link.up(proxy);
  },

  async "dialled-out websocket link"(t, command) {
    const tokenFile = join(directory(t), "token");
    writeFileSync(tokenFile, "known-by-this");
    const proxy = await configured(t, { links: { away: { accept: true, tokenFile } } });
    const to = ["--dial", `ws://${proxy.host}/link`, "--token-file", tokenFile];
    return new Link(t, to, command).up(proxy);
  },
};

/** `mcp-proxy host` with a command as its upstream. */
class Link {
  constructor(t, to, command) {
    this.start = () => (this.child = new Child(t, binary, ["host", ...to, "--", ...command]));
    this.start();
  }

  /** The proxy, which has this link from now on. */
  async up(proxy) {
    await proxy.match(/"link up"/);
    return Object.assign(proxy, { link: this });
  }

  async kill() {
    this.child.process.kill("SIGKILL");
    await this.child.exited;
  }
}

/** A directory for a test. */
export function directory(t) {
  const path = mkdtempSync(join(tmpdir(), "interop-"));
  t.after(() => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** A port that nobody has at the moment. */
export async function freePort() {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const { port } = listener.address();
  listener.close();
  return port;
}

/** What probe returns, once that is truthy; an error after some seconds without. */
export async function until(what, probe, seconds = 20) {
  const end = Date.now() + seconds * 1000;
  for (;;) {
    const found = await probe();
    if (found) return found;
    if (Date.now() > end) throw new Error(`waited ${seconds} s for: ${what}`);
    await sleep(10);
  }
}

/** Whether a process is gone; one that only waits for init to reap it is. */
export function gone(pid) {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    const [state, parent] = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return state === "Z" && parent === "1";
  } catch (err) {
    if (err.code === "ENOENT" || err.code === "ESRCH") return true;
    throw err;
  }
}

/** The records of a JSON log at info and above; other lines are passed over. */
export function records(log) {
  const lines = log.split("\n").filter((line) => line.startsWith("{"));
  return lines.map((line) => JSON.parse(line)).filter((r) => r.level && r.level !== "DEBUG");
}
