// The TypeScript SDK's client over every transport that it has.
//
// Each way to the same server runs the same conversation; "direct" has no proxy
// in between and shows that the conversation expects nothing peculiar to it.

import assert from "node:assert/strict";
import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { WebSocketClientTransport } from "@modelcontextprotocol/sdk/client/websocket.js";
import * as types from "@modelcontextprotocol/sdk/types.js";
import { binary, gone, here, script, serve, until } from "./proxy.mjs";

const node = process.execPath;
const server = [node, here("server.mjs")];

const ways = {
  direct: () => stdio(server),
  stdio: () => stdio([binary, "stdio", "--", ...server]),
  websocket: async (t) => new WebSocketClientTransport(new URL(`ws://${await listen(t)}/ws`)),
  sse: async (t) => new SSEClientTransport(new URL(`http://${await listen(t)}/sse`)),
  http: async (t) => new StreamableHTTPClientTransport(new URL(`http://${await listen(t)}/mcp`)),
};

for (const [way, open] of Object.entries(ways)) {
  describe(way, () => {
    test("tools, resources, prompts, completion", (t) => features(t, open));
    test("sampling and elicitation", (t) => questions(t, open));
    test("progress and logging", (t) => notifications(t, open));
    test("cancellation", (t) => cancellation(t, open));
    if (way !== "direct") test("server death", (t) => death(t, open));
  });
}

async function features(t, open) {
  const { client } = await connect(t, open);
  const { tools } = await client.listTools();
  assert.ok(tools.some((tool) => tool.name === "echo"));
  assert.equal(await call(client, "echo", { text: "h\u00e9 \ud83d\udc4b" }), "h\u00e9 \ud83d\udc4b");

  const { resources } = await client.listResources();
  assert.deepEqual(resources.map((r) => r.uri), ["interop://motto"]);
  const { resourceTemplates } = await client.listResourceTemplates();
  assert.deepEqual(resourceTemplates.map((r) => r.uriTemplate), ["interop://greeting/{name}"]);
  const { contents } = await client.readResource({ uri: "interop://greeting/Ada" });
  assert.deepEqual(contents, [{ uri: "interop://greeting/Ada", text: "Hello, Ada" }]);

  const { prompts } = await client.listPrompts();
  assert.deepEqual(prompts.map((p) => p.name), ["greet"]);
  const { messages } = await client.getPrompt({ name: "greet", arguments: { name: "Ada" } });
  assert.equal(messages[0].content.text, "Greet Ada.");

  const argument = { name: "name", value: "A" };
  for (const ref of [
    { type: "ref/prompt", name: "greet" },
    { type: "ref/resource", uri: "interop://greeting/{name}" },
  ]) {
    const { completion } = await client.complete({ ref, argument });
    assert.deepEqual(completion.values, ["Ada", "Alan"]);
  }
}

async function questions(t, open) {
  const { client } = await connect(t, open);
  const sampled = await call(client, "sample", { prompt: "Say hi" });
  assert.equal(JSON.parse(sampled).content.text, "You said: Say hi");
  const answer = await call(client, "ask", { message: "Who?" });
  assert.deepEqual(JSON.parse(answer), { action: "accept", content: { name: "Who?" } });
}

async function notifications(t, open) {
  const { client, frames, logged } = await connect(t, open);
  await call(client, "work", { steps: 3, hold: false }, { onprogress() {} });
  // The client drops what is still queued for onprogress when the result comes: ask the wire.
  const steps = frames.filter(([, m]) => m.method === "notifications/progress" || m.result?.content);
  assert.deepEqual(steps.map(([, m]) => m.params?.progress), [1, 2, 3, undefined]);

  await client.setLoggingLevel("debug");
  await call(client, "log", { data: "a line" });
  const [line] = await until("a log line", () => logged.length > 0 && logged);
  assert.equal(line.data, "a line");
}

async function cancellation(t, open) {
  const { client, frames } = await connect(t, open);
  const abort = new AbortController();
  const held = await hold(client, frames, abort.signal);
  abort.abort("enough");
  await assert.rejects(held.result);
  await until("the cancellation", async () => (await call(client, "cancelled")) === "1");
  assert.ok(!held.answers().some((frame) => "result" in frame), "a cancelled call was answered");
}

async function death(t, open) {
  const { client, frames } = await connect(t, open);
  const pid = await call(client, "pid");
  const held = await hold(client, frames);
  process.kill(pid, "SIGKILL");
  await assert.rejects(held.result, connectionClosed("main"));

  assert.notEqual(await call(client, "pid"), pid, "the next call is served by a new process");
  assert.equal(held.answers().length, 1);
  await until("the old process to be gone", () => gone(pid));
}

test("four real servers behind one connection", async (t) => {
  const files = mkdtempSync(join(tmpdir(), "interop-"));
  const upstreams = {
    everything: { command: node, args: [script("server-everything"), "stdio"] },
    files: { command: node, args: [script("server-filesystem"), files] },
    memory: { command: node, args: [script("server-memory")], env: { MEMORY_FILE_PATH: join(files, "memory") } },
    interop: { command: node, args: [here("server.mjs")] },
  };
  const config = join(files, "mcp-proxy.json");
  writeFileSync(config, JSON.stringify({ upstreams }));
  const proxy = await serve(t, ["--config", config]);
  const { client, frames } = await connect(t, () => new WebSocketClientTransport(new URL(`ws://${proxy.host}/ws`)));

  const { tools } = await client.listTools();
  const owners = new Set(tools.map((tool) => tool.name.split("__")[0]));
  assert.deepEqual([...owners], Object.keys(upstreams));

  await call(client, "files__write_file", { path: join(files, "a.txt"), content: "lossless" });
  assert.equal(await call(client, "files__read_text_file", { path: join(files, "a.txt") }), "lossless");
  const entities = [{ name: "Ada", entityType: "person", observations: ["first"] }];
  await call(client, "memory__create_entities", { entities });
  assert.deepEqual(JSON.parse(await call(client, "memory__read_graph")).entities, entities);

  const pid = await call(client, "interop__pid");
  const held = await hold(client, frames, undefined, "interop__work");
  const other = call(client, "everything__trigger-long-running-operation", { duration: 1, steps: 2 });
  process.kill(pid, "SIGKILL");
  await assert.rejects(held.result, connectionClosed("interop"));
  assert.match(await other, /completed/);
  assert.equal(await call(client, "interop__echo", { text: "back" }), "back");

  const alone = await connect(t, () => new WebSocketClientTransport(new URL(`ws://${proxy.host}/ws/memory`)));
  assert.ok((await alone.client.listTools()).tools.some((tool) => tool.name === "read_graph"));
});

test("examples/aggregate.yaml", async (t) => {
  const files = mkdtempSync(join(tmpdir(), "interop-"));
  const env = { ...process.env, DATA_DIR: files, MEMORY_FILE: join(files, "memory") };
  // npx finds the servers here, where they are installed in the very versions.
  const proxy = await serve(t, ["--config", here("../examples/aggregate.yaml")], { cwd: here("."), env });
  const { client } = await connect(t, () => new StreamableHTTPClientTransport(new URL(`http://${proxy.host}/mcp`)));
  const names = await until("the tools of all three", async () => {
    const { tools } = await client.listTools();
    const names = tools.map((tool) => tool.name);
    return ["everything__echo", "files__list_directory", "memory__read_graph"].every((n) => names.includes(n)) && names;
  });
  assert.ok(!names.includes("files__move_file"), "a denied tool is listed");
  await assert.rejects(call(client, "files__move_file", { source: "a", destination: "b" }));
});

function stdio([command, ...args]) {
  return new StdioClientTransport({ command, args, stderr: "ignore" });
}

async function listen(t) {
  return (await serve(t, ["--", ...server])).host;
}

/**
 * A connected client that answers questions, what was logged to it, and the
 * frames that went over the wire: [direction, message].
 */
async function connect(t, open) {
  const transport = await open(t);
  const client = new Client(
    { name: "interop", version: "1.0.0" },
    { capabilities: { sampling: {}, elicitation: {} } },
  );
  const logged = [];
  client.setNotificationHandler(types.LoggingMessageNotificationSchema, ({ params }) => logged.push(params));
  client.setRequestHandler(types.ElicitRequestSchema, ({ params }) => ({
    action: "accept",
    content: { name: params.message },
  }));
  client.setRequestHandler(types.CreateMessageRequestSchema, ({ params }) => ({
    role: "assistant",
    model: "none",
    content: { type: "text", text: `You said: ${params.messages[0].content.text}` },
  }));
  t.after(() => client.close());
  await client.connect(transport);
  return { client, logged, frames: tap(transport) };
}

function tap(transport) {
  const frames = [];
  const { send, onmessage } = transport;
  transport.send = (message, options) => {
    frames.push(["sent", message]);
    return send.call(transport, message, options);
  };
  transport.onmessage = (message, extra) => {
    frames.push(["received", message]);
    onmessage(message, extra);
  };
  return frames;
}

/** The text of a tool's result. */
async function call(client, name, args = {}, options) {
  const result = await client.callTool({ name, arguments: args }, undefined, options);
  assert.ok(!result.isError, JSON.stringify(result));
  return result.content[0].text;
}

/** A call that is at work in the server and stays there, and the frames that answer it. */
async function hold(client, frames, signal, name = "work") {
  let working;
  const started = new Promise((resolve) => (working = resolve));
  const result = call(client, name, { steps: 1, hold: true }, { onprogress: working, signal });
  result.catch(() => {}); // until the caller looks at it
  await Promise.race([started, result]);
  const [, { id }] = frames.findLast(([dir, m]) => dir === "sent" && m.params?.name === name);
  const isAnswer = ([dir, m]) => dir === "received" && m.id === id && !("method" in m);
  return { result, answers: () => frames.filter(isAnswer).map(([, m]) => m) };
}

/** Whether an error is the one that tells of an upstream's death during a call. */
function connectionClosed(upstream) {
  return (err) => {
    assert.equal(err.code, -32603);
    assert.equal(err.message, "MCP error -32603: Connection closed");
    assert.deepEqual(err.data, {
      reason: "connection_closed",
      upstream,
      cause: "signal: killed",
      phase: "in_flight",
      retryable: false,
    });
    return true;
  };
}
