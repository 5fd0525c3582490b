// The TypeScript SDK's client over every transport that it has.
//
// Each way to the same server runs the same conversation; "direct" has no proxy
// in between and shows that the conversation expects nothing peculiar to it.

import assert from "node:assert/strict";
import { join } from "node:path";
import { describe, test } from "node:test";
import { call, connect, connectionClosed, hold, remote, stdio } from "./client.mjs";
import { converse, lists, peers } from "./peers.mjs";
import { behind, binary, configured, directory, gone, here, script, serve, until } from "./proxy.mjs";

const node = process.execPath;
const server = [node, here("server.mjs")];

const ways = {
  direct: () => stdio(server),
  stdio: () => stdio([binary, "stdio", "--", ...server]),
  websocket: async (t) => remote(`ws://${await listen(t, "process")}/ws`),
  sse: async (t) => remote(`http://${await listen(t, "process")}/sse`),
  http: async (t) => remote(`http://${await listen(t, "process")}/mcp`),
  "shared, websocket": async (t) => remote(`ws://${await listen(t, "shared")}/ws`),
  "shared, http": async (t) => remote(`http://${await listen(t, "shared")}/mcp`),
  "dialled-out link, websocket": async (t) => remote(`ws://${await listen(t, "dialled-out websocket link")}/ws`),
  "unix link, http": async (t) => remote(`http://${await listen(t, "unix link")}/mcp`),
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
  const held = await hold(client, frames, { signal: abort.signal });
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

for (const [name, start] of Object.entries(peers)) {
  test(`${name}: the same through the proxy`, async (t) => {
    const peer = await start(t);
    const expected = await converse(t, peer.direct, peer);
    const { host } = await configured(t, { upstreams: { main: { url: peer.url } } });
    const ways = {
      http: () => remote(`http://${host}/mcp`),
      websocket: () => remote(`ws://${host}/ws`),
      connect: () => stdio([binary, "connect", peer.url]),
    };
    for (const [way, open] of Object.entries(ways)) {
      await t.test(way, async (t) => assert.deepEqual(await converse(t, open, peer), expected));
    }
    await t.test("shared", async (t) => {
      const { host } = await configured(t, { upstreams: { main: { url: peer.url, session: "shared" } } });
      const said = await converse(t, () => remote(`ws://${host}/ws`), peer);
      // It is told of all that any client could do, and may offer more for it.
      const names = expected.lists.tools.map((tool) => tool.name);
      said.lists.tools = said.lists.tools.filter((tool) => names.includes(tool.name));
      assert.deepEqual(said, expected);
    });
  });
}

test("a shared server: to each client its own", async (t) => {
  const proxy = await behind.shared(t, server);
  const open = () => remote(`ws://${proxy.host}/ws`);
  const [ada, alan] = [await connect(t, open), await connect(t, open)];
  const pid = await call(ada.client, "pid");
  assert.equal(await call(alan.client, "pid"), pid);

  const held = await hold(ada.client, ada.frames);
  await assert.rejects(call(alan.client, "ask", { message: "Who?" }), /cannot attribute/);
  const work = { steps: 3, hold: false };
  await call(alan.client, "work", work, { onprogress() {} });
  const heard = (frames) =>
    frames.flatMap(([, m]) => (m.method === "notifications/progress" ? [m.params.progress] : []));
  assert.deepEqual([heard(ada.frames), heard(alan.frames)], [[1], [1, 2, 3]]);

  await alan.client.close();
  await assert.doesNotReject(call(ada.client, "echo", { text: "still here" }));
  await ada.client.close();
  await assert.rejects(held.result);
  const eve = await connect(t, open);
  await until("the cancellation", async () => (await call(eve.client, "cancelled")) === "1");
  assert.equal(await call(eve.client, "pid"), pid);
});

test("two remote servers behind one connection", async (t) => {
  const everything = await peers["server-everything, sse"](t);
  const python = await peers["python-sdk, Streamable HTTP"](t);
  const proxy = await configured(t, {
    upstreams: { python: { url: python.url } },
    mcpServers: { everything: { type: "sse", url: everything.url } },
  });
  const all = await lists((await connect(t, () => remote(`ws://${proxy.host}/ws`))).client);
  for (const [name, { direct }] of Object.entries({ everything, python })) {
    const own = await lists((await connect(t, direct)).client);
    const prefixed = ({ name: bare, ...rest }) => ({ ...rest, name: `${name}__${bare}` });
    assert.deepEqual(all.tools.filter((tool) => tool.name.startsWith(name)), own.tools.map(prefixed));
    assert.deepEqual(all.prompts.filter((prompt) => prompt.name.startsWith(name)), own.prompts.map(prefixed));
    for (const { uri } of own.resources) assert.ok(all.resources.some((r) => r.uri === uri));
  }
});

test("four real servers behind one connection", async (t) => {
  const files = directory(t);
  const upstreams = {
    everything: { command: node, args: [script("server-everything"), "stdio"] },
    files: { command: node, args: [script("server-filesystem"), files] },
    memory: { command: node, args: [script("server-memory")], env: { MEMORY_FILE_PATH: join(files, "memory") } },
    interop: { command: node, args: [here("server.mjs")] },
  };
  const proxy = await configured(t, { upstreams });
  const { client, frames } = await connect(t, () => remote(`ws://${proxy.host}/ws`));

  const { tools } = await client.listTools();
  const owners = new Set(tools.map((tool) => tool.name.split("__")[0]));
  assert.deepEqual([...owners], Object.keys(upstreams));

  await call(client, "files__write_file", { path: join(files, "a.txt"), content: "lossless" });
  assert.equal(await call(client, "files__read_text_file", { path: join(files, "a.txt") }), "lossless");
  const entities = [{ name: "Ada", entityType: "person", observations: ["first"] }];
  await call(client, "memory__create_entities", { entities });
  assert.deepEqual(JSON.parse(await call(client, "memory__read_graph")).entities, entities);

  const pid = await call(client, "interop__pid");
  const held = await hold(client, frames, { name: "interop__work" });
  const other = call(client, "everything__trigger-long-running-operation", { duration: 1, steps: 2 });
  process.kill(pid, "SIGKILL");
  await assert.rejects(held.result, connectionClosed("interop"));
  assert.match(await other, /completed/);
  assert.equal(await call(client, "interop__echo", { text: "back" }), "back");

  const alone = await connect(t, () => remote(`ws://${proxy.host}/ws/memory`));
  assert.ok((await alone.client.listTools()).tools.some((tool) => tool.name === "read_graph"));
});

test("examples/aggregate.yaml", async (t) => {
  const files = directory(t);
  const env = { ...process.env, DATA_DIR: files, MEMORY_FILE: join(files, "memory") };
  // npx finds the servers here, where they are installed in the very versions.
  const proxy = await serve(t, ["--config", here("../examples/aggregate.yaml")], { cwd: here("."), env });
  const { client } = await connect(t, () => remote(`http://${proxy.host}/mcp`));
  const names = await until("the tools of all three", async () => {
    const { tools } = await client.listTools();
    const names = tools.map((tool) => tool.name);
    return ["everything__echo", "files__list_directory", "memory__read_graph"].every((n) => names.includes(n)) && names;
  });
  assert.ok(!names.includes("files__move_file"), "a denied tool is listed");
  await assert.rejects(call(client, "files__move_file", { source: "a", destination: "b" }));
});

async function listen(t, way) {
  return (await behind[way](t, server)).host;
}
