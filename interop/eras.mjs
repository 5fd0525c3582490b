// Clients of both eras that others wrote, and what the tests ask of each.
//
// A talk resolves to what a client was told: its tools, whether it heard of a
// change of them, an answer, an answer to which it was asked something, the steps
// of a call, an error, and whether the server heard that a call was given up.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { promisify } from "node:util";
import * as v1 from "./client.mjs";
import { Child, freePort, here, python, pythons, until } from "./proxy.mjs";

/** Our fixture, which is built for the tests, as a command; it speaks these versions. */
export const fixture = (versions) => [here("out/fixture"), "-versions", versions];
export const versions = { legacy: "2025-11-25,2025-06-18,2025-03-26,2024-11-05", modern: "2026-07-28" };

/** The URL of a server, a command that has the flag -http and says where it listens. */
export async function listening(t, [command, ...args]) {
  const address = `127.0.0.1:${await freePort()}`;
  const server = new Child(t, command, [...args, "-http", address]);
  await server.match(/listening at/);
  return `http://${address}/mcp`;
}

/** How a client of the TypeScript SDK 2 is told to speak that and nothing else. */
export const modern = { pin: "2026-07-28" };

/** Each has a talk with the server at a target: a URL, or a command where it can. */
export const talks = {
  "TypeScript v1, legacy": talkV1,
  "TypeScript v2, legacy": (t, target) => talkV2(t, target, "legacy"),
  "TypeScript v2, modern": (t, target) => talkV2(t, target, modern),
  "TypeScript v2, either": (t, target) => talkV2(t, target, "auto"),
  "python-sdk, legacy": (t, target) => talkAs(python(pythons.at(-1)), here("python/client.py"), "legacy", target),
  "python-sdk, modern": (t, target) => talkAs(python(pythons.at(-1)), here("python/client.py"), "modern", target),
  "Go, legacy": (t, target) => talkAs(here("out/talker"), "legacy", target),
  "Go, modern": (t, target) => talkAs(here("out/talker"), "modern", target),
};

async function talkV1(t, target) {
  const open = () => (Array.isArray(target) ? v1.stdio(target) : v1.remote(target));
  const { client, frames } = await v1.connect(t, open);
  const changes = () => frames.filter(([, m]) => m.method === "notifications/tools/list_changed").length;
  return talk({ client, frames, changes });
}

async function talkV2(t, target, mode) {
  return talk(await connectV2(t, target, mode));
}

/** A connected client of the TypeScript SDK 2 that answers questions with what is asked, or what answer makes of it. */
export async function connectV2(t, target, mode, answer = (message) => message) {
  const transport = openV2(target);
  let changes = 0;
  const client = new Client({ name: "interop", version: "1.0.0" }, {
    capabilities: { elicitation: {}, sampling: {} },
    versionNegotiation: { mode },
    listChanged: { tools: { autoRefresh: false, debounceMs: 0, onChanged: () => changes++ } },
  });
  client.setRequestHandler("elicitation/create", async ({ params }) => ({
    action: "accept",
    content: { name: await answer(params.message) },
  }));
  t.after(() => client.close());
  await client.connect(transport);
  return { client, frames: v1.tap(transport), changes: () => changes };
}

function openV2(target) {
  if (!Array.isArray(target)) return new StreamableHTTPClientTransport(new URL(target));
  const [command, ...args] = target;
  return new StdioClientTransport({ command, args, stderr: "ignore" });
}

/** The talk of a client of the TypeScript SDK: callTool of v1 takes a schema before the options. */
async function talk({ client, frames, changes }) {
  const options = (o) => (client instanceof Client ? [o] : [undefined, o]);
  const call = (name, args = {}, o) => client.callTool({ name, arguments: args }, ...options(o));
  const text = async (...args) => (await call(...args)).content[0].text;
  const { tools } = await client.listTools();
  return {
    tools: tools.map((tool) => tool.name).filter((name) => name !== "appears"),
    changed: await change(text, changes),
    said: await text("echo", { text: "h\u00e9 \ud83d\udc4b" }),
    asked: JSON.parse(await text("ask", { message: "Who?" })),
    steps: await steps(call, frames),
    error: await failure(call("fail")),
    cancelled: await cancel(call, text),
  };
}

/** A stream for changes may not be there at first. */
async function change(text, changes) {
  return until("word of a change", async () => {
    await text("test_trigger_tool_change");
    return changes() > 0;
  });
}

/** The wire knows what came: a client may drop what is queued when the result comes. */
async function steps(call, frames) {
  const from = frames.length;
  await call("work", { steps: 3, hold: false }, { onprogress() {} });
  return frames.slice(from).flatMap(([, m]) => (m.method === "notifications/progress" ? [m.params.progress] : []));
}

/** Some servers make a result of every error in a tool. */
function failure(call) {
  return call.then(
    ({ isError, content }) => ({ isError, text: content[0].text }),
    ({ code, message, data }) => ({ code, message: message.replace(/^MCP error \d+: /, ""), data }),
  );
}

async function cancel(call, text) {
  const before = Number(await text("cancelled"));
  const abort = new AbortController();
  const onprogress = () => abort.abort("enough");
  await assert.rejects(call("work", { steps: 1, hold: true }, { onprogress, signal: abort.signal }));
  return until("the cancellation", async () => Number(await text("cancelled")) > before);
}

async function talkAs(...command) {
  const { stdout } = await run(...command.flat());
  return JSON.parse(stdout);
}

/** The Inspector's command line answers no questions: this is what it says of one method. */
export async function inspect(target, era, ...method) {
  const to = ["--cli", "--transport", "http", "--server-url", target, "--protocol-era", era];
  const how = ["--format", "json", "--quiet", "--method", ...method];
  const inspector = here("node_modules/.bin/mcp-inspector");
  // It exits with a code of its own for each kind of error, and says on stderr which.
  const { stdout, stderr } = await run(process.execPath, inspector, ...to, ...how).catch((err) => err);
  const lines = (stdout + stderr).split("\n").filter((line) => line.startsWith("{"));
  assert.notEqual(lines.length, 0, stdout + stderr);
  return Object.assign({}, ...lines.map((line) => JSON.parse(line)));
}

function run(command, ...args) {
  return promisify(execFile)(command, args, { timeout: 60_000, killSignal: "SIGKILL" });
}
