// What to paste into which client, for an address.

const json = (value) => JSON.stringify(value, undefined, 2);

/**
 * The entries for a server: its name in clients, its URLs for HTTP (http) and WebSocket (ws),
 * and whether an operator's token has to be sent.
 */
export function entries({ name, http, ws, token }) {
  const bearer = "Authorization: Bearer ${MCP_TOKEN}";
  return [
    {
      client: "Claude Code",
      how: token ? "In a shell that has the token in MCP_TOKEN." : "In a shell.",
      text: `claude mcp add --transport http ${name} ${http}${token ? ' --header "Authorization: Bearer $MCP_TOKEN"' : ""}`,
    },
    {
      client: "Claude Desktop",
      how: "In claude_desktop_config.json. It starts servers itself, so mcp-proxy has to be installed there, too.",
      text: json({ mcpServers: { [name]: { command: "mcp-proxy", args: ["connect", http, ...(token ? ["--header", bearer] : [])], ...(token && { env: { MCP_TOKEN: "the token" } }) } } }),
    },
    {
      client: "VS Code",
      how: token ? "In .vscode/mcp.json. VS Code asks for the token once, and keeps it." : "In .vscode/mcp.json.",
      text: json({
        ...(token && { inputs: [{ type: "promptString", id: "mcp-token", description: "Token", password: true }] }),
        servers: { [name]: { type: "http", url: http, ...(token && { headers: { Authorization: "Bearer ${input:mcp-token}" } }) } },
      }),
    },
    {
      client: "Cursor",
      how: "In ~/.cursor/mcp.json, or .cursor/mcp.json of a project.",
      text: json({ mcpServers: { [name]: { url: http, ...(token && { headers: { Authorization: "Bearer ${env:MCP_TOKEN}" } }) } } }),
    },
    { client: "Python", how: "With mcp 2 from PyPI.", text: token ? pythonWithToken(http) : python(http) },
    { client: "TypeScript", how: "With @modelcontextprotocol/client from npm.", text: typescript(http, token) },
    {
      client: "A client that speaks stdio",
      how: "Any that starts servers itself: this is the command.",
      text: `mcp-proxy connect ${token ? `--header '${bearer}' ` : ""}${ws}`,
    },
  ];
}

const python = (url) => `import asyncio

from mcp import Client


async def main():
    async with Client("${url}") as client:
        print([tool.name for tool in (await client.list_tools()).tools])


asyncio.run(main())
`;

const pythonWithToken = (url) => `import asyncio
import os

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def main():
    headers = {"Authorization": f"Bearer {os.environ['MCP_TOKEN']}"}
    async with httpx2.AsyncClient(headers=headers, timeout=None) as http:
        async with Client(streamable_http_client("${url}", http_client=http)) as client:
            print([tool.name for tool in (await client.list_tools()).tools])


asyncio.run(main())
`;

const typescript = (url, token) => `import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const client = new Client({ name: "my-client", version: "1.0.0" });
await client.connect(new StreamableHTTPClientTransport(new URL("${url}")${token ? `, {
  requestInit: { headers: { Authorization: \`Bearer \${process.env.MCP_TOKEN}\` } },
}` : ""}));
console.log((await client.listTools()).tools.map((tool) => tool.name));
await client.close();
`;
