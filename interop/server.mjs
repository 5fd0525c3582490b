// An MCP server over stdio that does on request whatever a client may have to
// cope with: ask back, report progress, log, wait to be cancelled, die.

import { McpServer, ResourceTemplate } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import { completable } from "@modelcontextprotocol/sdk/server/completable.js";
import { z } from "zod";

const server = new McpServer({ name: "interop", version: "1.0.0" }, { capabilities: { logging: {} } });
const text = (value) => ({ content: [{ type: "text", text: String(value) }] });
let cancelled = 0;

function tool(name, inputSchema, run) {
  server.registerTool(name, { description: `Interop: ${name}`, inputSchema }, run);
}

tool("echo", { text: z.string() }, async (args) => text(args.text));

tool("pid", {}, async () => text(process.pid));

tool("cancelled", {}, async () => text(cancelled));

tool("fail", {}, async () => {
  throw new Error("as you wish");
});

tool("test_trigger_tool_change", {}, async () => {
  server.sendToolListChanged();
  return text("changed");
});

tool("log", { data: z.string() }, async ({ data }, { sendNotification }) => {
  const params = { level: "info", logger: "interop", data };
  await sendNotification({ method: "notifications/message", params });
  return text("logged");
});

tool("sample", { prompt: z.string() }, async ({ prompt }, { sendRequest }) => {
  const messages = [{ role: "user", content: { type: "text", text: prompt } }];
  const params = { messages, maxTokens: 10 };
  return text(JSON.stringify(await sendRequest({ method: "sampling/createMessage", params }, z.any())));
});

tool("ask", { message: z.string() }, async ({ message }, { sendRequest }) => {
  const requestedSchema = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
  const params = { message, requestedSchema };
  return text(JSON.stringify(await sendRequest({ method: "elicitation/create", params }, z.any())));
});

// Reports `steps` times; a held one then stays at work until it is cancelled.
tool("work", { steps: z.number(), hold: z.boolean() }, async ({ steps, hold }, extra) => {
  for (let progress = 1; progress <= steps; progress++) {
    const params = { progressToken: extra._meta.progressToken, progress, total: steps };
    await extra.sendNotification({ method: "notifications/progress", params });
  }
  if (hold) await new Promise((resolve) => extra.signal.addEventListener("abort", resolve));
  if (extra.signal.aborted) cancelled++;
  return text("done");
});

const names = ["Ada", "Alan", "Grace"];
const complete = (value) => names.filter((name) => name.startsWith(value));

server.registerResource("motto", "interop://motto", {}, async ({ href }) => ({
  contents: [{ uri: href, text: "lose nothing" }],
}));

server.registerResource(
  "greeting",
  new ResourceTemplate("interop://greeting/{name}", { list: undefined, complete: { name: complete } }),
  {},
  async ({ href }, { name }) => ({ contents: [{ uri: href, text: `Hello, ${name}` }] }),
);

server.registerPrompt("greet", { argsSchema: { name: completable(z.string(), complete) } }, ({ name }) => ({
  messages: [{ role: "user", content: { type: "text", text: `Greet ${name}.` } }],
}));

await server.connect(new StdioServerTransport());
