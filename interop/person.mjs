// Somebody with a home of their own, where logins are kept, and a browser.

import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { binary, Child, directory, here } from "./proxy.mjs";

export class Person {
  /** What the programs that clients started have written to stderr. */
  logs = [];

  constructor(t) {
    this.t = t;
    this.home = directory(t);
    const names = ["CONFIG", "DATA", "STATE", "CACHE"];
    const own = names.map((name) => [`XDG_${name}_HOME`, join(this.home, name.toLowerCase())]);
    const files = { BROWSER_LOG: join(this.home, "browsed"), BROWSER_IDLE: join(this.home, "idle") };
    const browser = { DISPLAY: ":0", BROWSER: here("browser.mjs"), ...files };
    const { PATH } = process.env;
    this.env = { PATH, HOME: this.home, XDG_RUNTIME_DIR: this.home, ...Object.fromEntries(own), ...browser };
  }

  /** The pages that the browser was sent to. */
  get browsed() {
    const { BROWSER_LOG } = this.env;
    return existsSync(BROWSER_LOG) ? readFileSync(BROWSER_LOG, "utf8").trim().split("\n") : [];
  }

  /** Starts mcp-proxy; the environment is the person's own but for what env says. */
  spawn(args, env) {
    return new Child(this.t, binary, args, { env: { ...this.env, ...env } });
  }

  /** Has mcp-proxy do something; resolves to what it said. */
  async run(args) {
    const child = this.spawn(args);
    await child.closed;
    assert.equal(child.process.exitCode, 0, child.output);
    return child.output;
  }

  /** A client's transport to mcp-proxy as a child. */
  transport(args) {
    const transport = new StdioClientTransport({ command: binary, args, env: this.env, stderr: "pipe" });
    const log = this.logs.push("") - 1;
    transport.stderr.setEncoding("utf8").on("data", (text) => (this.logs[log] += text));
    return transport;
  }

  connect(url, ...flags) {
    return this.transport(["connect", ...flags, url]);
  }

  /** Writes a file that only this person can read; its path. */
  file(name, text) {
    const path = join(this.home, name);
    writeFileSync(path, text, { mode: 0o600 });
    return path;
  }

  /** All files at home, with their modes. */
  files() {
    const paths = readdirSync(this.home, { recursive: true }).map((name) => join(this.home, name));
    const files = paths.map((path) => ({ path, stat: statSync(path) })).filter(({ stat }) => stat.isFile());
    return files.map(({ path, stat }) => ({ path, mode: stat.mode, text: readFileSync(path, "utf8") }));
  }
}
