// Remote servers that others wrote, and one conversation for all of them.

import assert from "node:assert/strict";
import { call, connect, hold, remote, stdio } from "./client.mjs";
import { Child, freePort, here, python, pythons, script, serve, until } from "./proxy.mjs";

const everything = {
  work: { name: "trigger-long-running-operation", arguments: { duration: 0.3, steps: 3 } },
  hold: { name: "trigger-long-running-operation", args: { duration: 60, steps: 600 } },
  asks: [
    { name: "trigger-elicitation-request" },
    { name: "trigger-sampling-request", arguments: { prompt: "Say hi", maxTokens: 10 } },
  ],
  resource: "demo://resource/static/document/architecture.md",
  prompt: { name: "args-prompt", arguments: { city: "Paris" } },
  completion: { ref: { type: "ref/prompt", name: "completable-prompt" }, argument: { name: "department", value: "S" } },
  subscribe: "demo://resource/static/document/features.md",
};

const interop = {
  work: { name: "work", arguments: { steps: 3, hold: false } },
  hold: { name: "work", args: { steps: 1, hold: true } },
  asks: [
    { name: "ask", arguments: { message: "Who?" } },
    { name: "sample", arguments: { prompt: "Say hi" } },
  ],
  resource: "interop://greeting/Ada",
  prompt: { name: "greet", arguments: { name: "Ada" } },
  completion: { ref: { type: "ref/prompt", name: "greet" }, argument: { name: "name", value: "A" } },
  cancelled: "cancelled",
};

/**
 * Each starts a server at port, or at a free one, and resolves to it: where it
 * is, what can be said to it, and a transport to it without mcp-proxy.
 */
export const peers = {
  "server-everything, streamableHttp": (t, port) => startEverything(t, "streamableHttp", "/mcp", port),
  "server-everything, sse": (t, port) => startEverything(t, "sse", "/sse", port),

  async "python-sdk, Streamable HTTP"(t, port) {
    port ??= await freePort();
    const child = new Child(t, python(pythons.at(-1)), [here("python/peer.py"), port]);
    await child.match(/running on/);
    return at(`http://127.0.0.1:${port}/mcp`, { ...interop, child, port });
  },

  "mcp-proxy, Streamable HTTP": (t, port) => startChain(t, "http", "/mcp", port),
  "mcp-proxy, WebSocket": (t, port) => startChain(t, "ws", "/ws", port),
};

async function startEverything(t, transport, path, port) {
  port ??= await freePort();
  const env = { ...process.env, PORT: port };
  const child = new Child(t, process.execPath, [script("server-everything"), transport], { env });
  await child.match(/(listening|running) on port/);
  const resumable = transport === "streamableHttp";
  return at(`http://127.0.0.1:${port}${path}`, { ...everything, child, port, resumable });
}

/** Another mcp-proxy, in front of a server that a client reaches directly over stdio. */
async function startChain(t, scheme, path, port) {
  const command = [process.execPath, script("server-everything"), "stdio"];
  const child = await serve(t, ["--", ...command], { port });
  const [, bound] = child.host.split(":");
  const peer = { ...everything, child, port: bound, resumable: scheme === "http" };
  return { ...at(`${scheme}://${child.host}${path}`, peer), direct: () => stdio(command) };
}

function at(url, peer) {
  return { url, direct: () => remote(url), ...peer };
}

/**
 * Goes through all that a peer offers over one transport, and resolves to what
 * it said: the same, whatever is in between.
 */
export async function converse(t, open, peer) {
  const session = await connect(t, open);
  const { client } = session;
  return {
    lists: await lists(client),
    progress: await progress(session, peer),
    asked: await texts(client, peer.asks),
    resource: await client.readResource({ uri: peer.resource }),
    prompt: await client.getPrompt(peer.prompt),
    completion: await client.complete(peer.completion),
    logged: peer.subscribe && (await levels(session, peer)),
    updated: peer.subscribe && (await update(session, peer)),
    cancelled: await cancel(session, peer),
  };
}

export async function lists(client) {
  const { tools } = await client.listTools();
  const { resources } = await client.listResources();
  const { resourceTemplates } = await client.listResourceTemplates();
  const { prompts } = await client.listPrompts();
  return { tools, resources, resourceTemplates, prompts };
}

/** The wire knows what came: the client drops what is queued for onprogress when the result comes. */
async function progress({ client, frames }, { work }) {
  const from = frames.length;
  await client.callTool(work, undefined, { onprogress() {} });
  const came = frames.slice(from).flatMap(([dir, m]) => (dir === "received" ? [m] : []));
  const steps = came.filter((m) => m.method === "notifications/progress" || m.result);
  assert.deepEqual(steps.map((m) => m.params?.progress), [1, 2, 3, undefined]);
  return steps.map((m) => m.params?.total ?? m.result);
}

async function texts(client, tools) {
  const said = [];
  for (const { name, arguments: args } of tools) said.push(await call(client, name, args));
  assert.match(said.join("\n"), /You said: .*Say hi/);
  return said;
}

/**
 * The server logs subscriptions, at level info. It does so on the stream that a
 * client opens without being asked, which may not be there at first.
 */
async function levels({ client, logged }, { subscribe, resource: uri }) {
  await client.setLoggingLevel("debug");
  await until("a log line", async () => {
    await client.subscribeResource({ uri: subscribe });
    await client.unsubscribeResource({ uri: subscribe });
    return logged.length > 0;
  });
  await client.setLoggingLevel("error");
  await client.subscribeResource({ uri });
  await client.setLoggingLevel("debug");
  await client.unsubscribeResource({ uri });
  const lines = () => logged.filter(({ data }) => data.includes(uri));
  await until("a line on the second", () => lines().length > 0);
  return lines().map(({ level, data }) => [level, data.replace(/ *(from session .*)?$/, "")]);
}

async function update({ client, frames }, { subscribe: uri }) {
  await client.subscribeResource({ uri });
  await call(client, "toggle-subscriber-updates");
  const [, { params }] = await until("an update", () =>
    frames.find(([, m]) => m.method === "notifications/resources/updated"),
  );
  await call(client, "toggle-subscriber-updates");
  return params;
}

async function cancel({ client, frames }, peer) {
  const count = async () => (peer.cancelled ? Number(await call(client, peer.cancelled)) : 0);
  const before = await count();
  const abort = new AbortController();
  const held = await hold(client, frames, { ...peer.hold, signal: abort.signal });
  abort.abort("enough");
  await assert.rejects(held.result);
  if (peer.cancelled) await until("the cancellation", async () => (await count()) > before);
  await client.listTools();
  return held.answers().filter((frame) => "result" in frame).length;
}
