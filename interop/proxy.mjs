// What the tests here share: where things are, and mcp-proxy as a child
// process that is watched and never outlives its test.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";

/** The path of a file in this directory. */
export const here = (name) => fileURLToPath(new URL(name, import.meta.url));

/** The program under test. */
export const binary = process.env.MCP_PROXY ?? here("out/mcp-proxy");

/** The script that an npm package here starts its server with. */
export const script = (name) => here(`node_modules/@modelcontextprotocol/${name}/dist/index.js`);

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

/** `mcp-proxy serve` on a port of its own; host is HOST:PORT. */
export async function serve(t, args, options) {
  const child = new Child(t, binary, ["serve", "--listen", "127.0.0.1:0", ...args], options);
  [child.host] = await child.match(/127\.0\.0\.1:[1-9]\d*/);
  return child;
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
