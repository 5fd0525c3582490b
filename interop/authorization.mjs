// An OpenID provider that others wrote, as the authorization server of a test.
//
// Anybody may register, log in and agree. Its access tokens are JWTs for the
// resource that was asked for (RFC 8707). What a test wants of it beyond that:
// other keys, tokens that are wrong, an end to what it granted.

import { SignJWT, exportJWK, generateKeyPair } from "jose";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import { Provider } from "oidc-provider";

console.info = console.warn = () => {}; // the provider says that this is no production

const scopes = ["openid", "offline_access", "mcp", "files.read", "files.write"];

/** Keys are made once: keys for RSA take their time. */
const keys = Promise.all(["ES256", "ES256", "ES256", "RS256", "EdDSA"].map(makeKey));

async function makeKey(alg, i) {
  const { privateKey } = await generateKeyPair(alg, { extractable: true });
  return { ...(await exportJWK(privateKey)), alg, use: "sig", kid: `key-${i}` };
}

/**
 * Starts an authorization server. alg is how it signs; ttl is the life of access
 * tokens in seconds, as it says, and they are good for so many more as grace;
 * clients are those that it knows beforehand.
 */
export async function authorizationServer(t, { alg = "ES256", ttl = 3600, grace = 0, clients = [] } = {}) {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const issuer = new AuthorizationServer(`http://127.0.0.1:${server.address().port}`, await keys, { alg, ttl, grace, clients });
  server.on("request", (req, res) => issuer.answer(req, res));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return issuer;
}

export class AuthorizationServer {
  /** How often each path was asked for. */
  asked = {};
  /** The refresh tokens that it gave away. */
  refreshTokens = [];
  /** How often somebody agreed in a browser. */
  authorizations = 0;
  down = false;

  constructor(url, keys, { alg, ttl, grace, clients }) {
    this.url = url;
    this.ttl = ttl;
    this.grace = grace;
    this.keys = keys;
    this.current = keys.find((key) => key.alg === alg);
    // What is published: what signs, and what ID tokens are signed with.
    this.published = new Set([this.current, keys.find((key) => key.alg === "RS256")]);
    this.provider = new Provider(url, this.#configuration(clients));
    this.handle = this.provider.callback();
    this.provider.on("refresh_token.saved", (token) => this.refreshTokens.push(token));
    this.provider.on("authorization.success", () => this.authorizations++);
  }

  #configuration(clients) {
    return {
      clients,
      scopes,
      jwks: { keys: this.keys },
      cookies: { keys: ["interop"] },
      clientAuthMethods: ["none", "client_secret_basic", "client_secret_post", "private_key_jwt"],
      enabledJWA: { idTokenSigningAlgValues: ["RS256", "ES256", "EdDSA"] },
      // What a client wrote of its scopes at its registration binds it to nothing.
      extraClientMetadata: { properties: ["bound"], validator: (ctx, key, value, metadata) => delete metadata.scope },
      pkce: { required: () => true },
      issueRefreshToken: (ctx, client) => client.grantTypeAllowed("refresh_token"),
      expiresWithSession: () => false,
      formats: { customizers: { jwt: (ctx, token, { payload }) => void (payload.exp += this.grace) } },
      features: {
        clientCredentials: { enabled: true },
        deviceFlow: { enabled: true },
        registration: { enabled: true },
        revocation: { enabled: true },
        resourceIndicators: {
          enabled: true,
          useGrantedResource: () => true,
          getResourceServerInfo: (ctx, resource) => this.#resource(resource),
        },
      },
    };
  }

  #resource(audience) {
    const { alg, kid } = this.current;
    const jwt = { sign: { alg, kid } };
    return { audience, scope: scopes.join(" "), accessTokenFormat: "jwt", accessTokenTTL: this.ttl, jwt };
  }

  answer(req, res) {
    const { pathname } = new URL(req.url, this.url);
    this.asked[pathname] = (this.asked[pathname] ?? 0) + 1;
    if (this.down) return res.writeHead(503).end();
    if (pathname === "/jwks") return json(res, { keys: [...this.published].map(publicPart) });
    return this.handle(req, res);
  }

  /** Signs with another key from now on. The old one stays published, unless how is "withdraw". */
  rotate(how) {
    const old = this.current;
    this.current = this.keys.find((key) => key.alg === old.alg && !this.published.has(key));
    this.published.add(this.current);
    if (how === "withdraw") this.published.delete(old);
  }

  /** How many of the refresh tokens that it gave away are still good. */
  async granted() {
    const found = await Promise.all(this.refreshTokens.map(({ jti }) => this.provider.RefreshToken.find(jti)));
    return found.filter((token) => token?.isValid).length;
  }

  /** Takes back all refresh tokens that it gave away. */
  async revoke() {
    await Promise.all(this.refreshTokens.splice(0).map((token) => token.destroy()));
  }

  /** A token that is as good as one of its own, but for what is said otherwise. No two are the same. */
  mint(audience, { claims = {}, header = {}, key = this.current } = {}) {
    const now = Math.floor(Date.now() / 1000);
    const about = { iss: this.url, aud: audience, sub: "ada", scope: "mcp", client_id: "interop" };
    const usual = { ...about, jti: randomUUID(), iat: now, exp: now + 600 };
    return new SignJWT({ ...usual, ...claims })
      .setProtectedHeader({ alg: key.alg, typ: "at+jwt", kid: key.kid, ...header })
      .sign(key);
  }
}

const publicPart = ({ d, p, q, dp, dq, qi, ...rest }) => rest;

function json(res, value) {
  res.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify(value));
}
