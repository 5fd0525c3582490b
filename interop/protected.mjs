// A remote server that wants tokens, as the TypeScript SDK protects one.

import * as router from "@modelcontextprotocol/sdk/server/auth/router.js";
import { InvalidTokenError } from "@modelcontextprotocol/sdk/server/auth/errors.js";
import { requireBearerAuth } from "@modelcontextprotocol/sdk/server/auth/middleware/bearerAuth.js";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/streamableHttp.js";
import express from "express";
import { createRemoteJWKSet, jwtVerify } from "jose";
import { once } from "node:events";
import { z } from "zod";

/**
 * Starts a server whose tokens come from an authorization server. Its tool echo
 * wants the scope mcp, and its tool work files.write as well. calls are the
 * tools that were called, each with the claims of the token. retire() makes it refuse
 * all tokens that it has seen, while closed is set it refuses every token, and while moved is set it points there.
 */
export async function protectedServer(t, issuer) {
  const app = express();
  const listener = app.listen(0, "127.0.0.1");
  await once(listener, "listening");
  t.after(() => {
    listener.closeAllConnections();
    listener.close();
  });
  const url = `http://127.0.0.1:${listener.address().port}/mcp`;
  const server = { url, calls: [], refused: 0, seen: new Set(), retired: new Set() };
  server.retire = () => server.seen.forEach((jti) => server.retired.add(jti));
  await protect(app, issuer, server);
  return server;
}

async function protect(app, issuer, server) {
  const resourceServerUrl = new URL(server.url);
  const oauthMetadata = await (await fetch(`${issuer.url}/.well-known/oauth-authorization-server`)).json();
  app.use(router.mcpAuthMetadataRouter({ oauthMetadata, resourceServerUrl, scopesSupported: ["mcp"] }));
  const verifier = { verifyAccessToken: verify(issuer, server) };
  const resourceMetadataUrl = router.getOAuthProtectedResourceMetadataUrl(resourceServerUrl);
  const needs = (requiredScopes) =>
    requireBearerAuth({ verifier, requiredScopes, resourceMetadataUrl, expectedResource: resourceServerUrl });
  const [usual, more] = [needs(["mcp"]), needs(["mcp", "files.write"])];
  app.use(express.json());
  app.use("/mcp", (req, res, next) => {
    res.on("finish", () => res.statusCode === 401 && server.refused++);
    (req.body?.params?.name === "work" ? more : usual)(req, res, next);
  });
  app.use("/mcp", (req, res, next) => (server.moved ? res.redirect(307, server.moved) : next()));
  app.post("/mcp", (req, res) => answer(server, req, res));
  app.all("/mcp", (req, res) => res.status(405).end());
}

function verify({ url: issuer }, server) {
  const keys = createRemoteJWKSet(new URL(`${issuer}/jwks`), { cooldownDuration: 0 });
  return async (token) => {
    const { payload } = await jwtVerify(token, keys, { issuer, audience: server.url }).catch((err) => {
      throw new InvalidTokenError(err.code);
    });
    server.seen.add(payload.jti);
    if (server.closed || server.retired.has(payload.jti)) throw new InvalidTokenError("retired");
    const scopes = payload.scope?.split(" ") ?? [];
    const { client_id: clientId, exp: expiresAt, aud } = payload;
    return { token, clientId, scopes, expiresAt, resource: new URL(aud), extra: payload };
  };
}

/** Each request has a server of its own: there are no sessions. */
async function answer(server, req, res) {
  const mcp = new McpServer({ name: "protected", version: "1.0.0" });
  const tool = (name, inputSchema, run) =>
    mcp.registerTool(name, { inputSchema }, async (args, { authInfo }) => {
      server.calls.push({ name, claims: authInfo.extra });
      return { content: [{ type: "text", text: run(args) }] };
    });
  tool("echo", { text: z.string() }, ({ text }) => text);
  tool("work", {}, () => "done");
  const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: undefined });
  res.on("close", () => mcp.close());
  await mcp.connect(transport);
  await transport.handleRequest(req, res, req.body);
}
