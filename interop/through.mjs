// A client with mcp-proxy in between: node through.mjs CLIENT… URL
//
// Starts a proxy with the server at URL as its upstream and then the client,
// with the proxy's URL in its place; ends as the client does.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { configured } from "./proxy.mjs";

const [client, ...rest] = process.argv.slice(2);
const url = rest.pop();
const ends = [];
const proxy = await configured({ after: (end) => ends.push(end) }, { upstreams: { main: { url } } });
const child = spawn(client, [...rest, `http://${proxy.host}/mcp`], { stdio: "inherit" });
const [code] = await once(child, "exit");
for (const end of ends.reverse()) await end();
process.exit(code ?? 1);
