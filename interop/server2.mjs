// What server.mjs is, for the talks of eras.mjs, on the TypeScript SDK 2 over
// stdio: it speaks 2026-07-28 and nothing else.

import { McpServer, acceptedContent, inputRequired } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { z } from "zod";

const text = (value) => ({ content: [{ type: "text", text: String(value) }] });
let cancelled = 0;

serveStdio(
  () => {
    const server = new McpServer({ name: "interop", version: "2.0.0" });
    const tool = (name, shape, run) =>
      server.registerTool(name, { description: `Interop: ${name}`, inputSchema: z.object(shape) }, run);

    tool("echo", { text: z.string() }, (args) => text(args.text));
    tool("cancelled", {}, () => text(cancelled));
    tool("fail", {}, () => {
      throw new Error("as you wish");
    });
    tool("ask", { message: z.string() }, ({ message }, { mcpReq }) => {
      const form = z.object({ name: z.string() });
      const content = acceptedContent(mcpReq.inputResponses, "form", form);
      if (content) return text(JSON.stringify({ action: "accept", content }));
      return inputRequired({ inputRequests: { form: inputRequired.elicit({ message, requestedSchema: form }) } });
    });
    tool("work", { steps: z.number(), hold: z.boolean() }, ({ steps, hold }, { mcpReq }) => work(steps, hold, mcpReq));
    tool("test_trigger_tool_change", {}, () => {
      server.sendToolListChanged();
      return text("changed");
    });
    return server;
  },
  { legacy: "reject" },
);

async function work(steps, hold, { _meta, signal, notify }) {
  for (let progress = 1; progress <= steps; progress++) {
    const params = { progressToken: _meta.progressToken, progress, total: steps };
    await notify({ method: "notifications/progress", params });
  }
  if (hold) await new Promise((resolve) => signal.addEventListener("abort", resolve));
  if (signal.aborted) cancelled++;
  return text("done");
}
