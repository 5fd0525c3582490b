// A client of the suite's auth scenarios that knows nothing of OAuth: node asker.mjs URL
//
// It speaks with mcp-proxy over stdio, which logs in to the server at URL: as
// `mcp-proxy connect`, or, where the suite gives a client beforehand, as
// `mcp-proxy stdio` with that client in its configuration.

import { Client } from "@modelcontextprotocol/client";
import { Person } from "./person.mjs";

const url = process.argv.at(-1);
const ends = [];
const person = new Person({ after: (end) => ends.push(end) });
const given = JSON.parse(process.env.MCP_CONFORMANCE_CONTEXT ?? "{}");
const version = process.env.MCP_CONFORMANCE_PROTOCOL_VERSION;

/** How an upstream proves who we are with what the suite gives; undefined where it gives nothing. */
function auth({ name, client_id: clientId, client_secret, private_key_pem }) {
  if (name === "auth/client-credentials-jwt") {
    return { clientCredentials: { clientId, privateKeyFile: person.file("key.pem", private_key_pem) } };
  }
  const clientSecretFile = client_secret && person.file("secret", client_secret);
  if (name === "auth/client-credentials-basic") return { clientCredentials: { clientId, clientSecretFile } };
  if (clientId) return { oauth: { clientId, clientSecretFile } };
  // The suite has this one in a constant: a client whose id is the URL of its metadata.
  if (process.env.MCP_CONFORMANCE_SCENARIO !== "auth/basic-cimd") return undefined;
  return { oauth: { clientId: "https://conformance-test.local/client-metadata.json" } };
}

function command() {
  const how = auth(given);
  if (!how) return ["connect", url];
  return ["stdio", "--config", person.file("mcp-proxy.json", JSON.stringify({ upstreams: { main: { url, auth: how } } }))];
}

const mode = version === "2026-07-28" ? { pin: version } : "legacy";
const client = new Client({ name: "interop", version: "1.0.0" }, { versionNegotiation: { mode } });
try {
  await client.connect(person.transport(command()));
  await client.listTools();
  await client.callTool({ name: "test-tool", arguments: {} });
} catch (err) {
  console.error(err.message);
  process.exitCode = 1;
} finally {
  await client.close();
  console.error(person.logs.join("\n"));
  for (const end of ends) end();
}
