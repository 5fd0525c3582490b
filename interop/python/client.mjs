// A client that vanishes: node client.mjs TOOL TARGET…
//
// It calls TOOL of the server at TARGET, a ws: or http: URL or a command, says
// on stdout which process is at work on the call, and never ends the call. It
// leaves with the SDK's close when its stdin ends, or is killed before. What a
// command writes to stderr goes to stderr.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { WebSocketClientTransport } from "@modelcontextprotocol/sdk/client/websocket.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const [name, ...target] = process.argv.slice(2);
const client = new Client({ name: "vanishing", version: "1.0.0" }, { capabilities: { elicitation: {} } });
const atWork = (pid) => console.log(`in flight ${pid}`);
client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
  atWork(params.message);
  return new Promise(() => {});
});

const transport = open(target);
await client.connect(transport);
const onprogress = ({ message }) => atWork(message);
client.callTool({ name }, undefined, { onprogress, timeout: 600_000 }).catch(() => {});

process.stdin.resume().on("end", async () => {
  await transport.terminateSession?.();
  await client.close();
  process.exit();
});

function open([first, ...rest]) {
  if (first.startsWith("ws:")) return new WebSocketClientTransport(new URL(first));
  if (first.startsWith("http:")) return new StreamableHTTPClientTransport(new URL(first));
  return new StdioClientTransport({ command: first, args: rest, stderr: "inherit" });
}
