// Tokens that serve must refuse.

import { SignJWT, exportJWK, exportSPKI, generateKeyPair, importJWK } from "jose";

/** The seconds of a token's times. */
export const now = () => Math.floor(Date.now() / 1000);
const base64 = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
const parts = async (token) => (await token).split(".");

/**
 * Makers of tokens. What is wrong with each is its name; all else is as it should be. They
 * get the issuer, the URL that tokens are for, and a server that nobody is to ask: the trap.
 */
export const wrong = {
  expired: ({ issuer, url }) => issuer.mint(url, { claims: { exp: now() - 60 } }),
  "not valid yet": ({ issuer, url }) => issuer.mint(url, { claims: { nbf: now() + 60 } }),
  "without an end": ({ issuer, url }) => issuer.mint(url, { claims: { exp: undefined } }),
  "for another server": ({ issuer }) => issuer.mint("http://127.0.0.1:1/mcp"),
  "for a server whose name goes on": ({ issuer, url }) => issuer.mint(`${url}.example.com`),
  "for nobody": ({ issuer }) => issuer.mint(undefined),
  "of nobody": ({ issuer, url }) => issuer.mint(url, { claims: { iss: undefined } }),
  "of an issuer that is not known": ({ issuer, url }) => issuer.mint(url, { claims: { iss: "http://127.0.0.1:1" } }),
  "of an issuer with a slash more": ({ issuer, url }) => issuer.mint(url, { claims: { iss: `${issuer.url}/` } }),
  "signed by somebody else": async ({ issuer, url }) =>
    issuer.mint(url, { key: { ...(await another()), kid: issuer.current.kid } }),
  "of a key that is not published": ({ issuer, url }) => issuer.mint(url, { key: issuer.keys.at(-1) }),
  "of another kind of key": async ({ issuer, url }) => issuer.mint(url, { key: await another("RS256") }),
  "HS256 with the public key as the secret": ({ issuer, url }) => confused(issuer, url, exportSPKI),
  "HS256 with the public key as it is published": ({ issuer, url }) =>
    confused(issuer, url, async (key) => JSON.stringify(await exportJWK(key))),
  "its own key in the header": async ({ issuer, url }) => {
    const { d, ...jwk } = await another();
    return issuer.mint(url, { key: { ...jwk, d }, header: { jwk } });
  },
  "an address of its own keys in the header": ({ issuer, url, trap }) =>
    issuer.mint(url, { key: issuer.keys.at(-1), header: { jku: trap.url, x5u: trap.url } }),
  "a kid that is a path": ({ issuer, url }) => issuer.mint(url, { header: { kid: "../../../../dev/null" } }),
  "a kid that is a URL": ({ issuer, url, trap }) => issuer.mint(url, { header: { kid: trap.url } }),
  "a kid that is SQL": ({ issuer, url }) => issuer.mint(url, { header: { kid: "' UNION SELECT 'key' -- " } }),
  "a kid that is an object": async ({ issuer, url }) => {
    const [, claims, signature] = await parts(issuer.mint(url));
    return [base64({ alg: "ES256", kid: { "key-0": 1 } }), claims, signature].join(".");
  },
  unsigned: ({ issuer, url }) => unsigned(issuer, url, { alg: "none", kid: issuer.current.kid }),
  "unsigned, spelt otherwise": ({ issuer, url }) => unsigned(issuer, url, { alg: "nOnE" }),
  "without its signature": async ({ issuer, url }) => (await parts(issuer.mint(url))).slice(0, 2).join(".") + ".",
  "with other claims": async ({ issuer, url }) => {
    const [header, claims, signature] = await parts(issuer.mint(url));
    const { sub, ...rest } = JSON.parse(Buffer.from(claims, "base64url"));
    return [header, base64({ ...rest, sub: "root" }), signature].join(".");
  },
  "with something critical that nobody knows": async ({ issuer, url }) => {
    const header = { alg: issuer.current.alg, kid: issuer.current.kid, crit: ["b65"], b65: true };
    return new SignJWT({ iss: issuer.url, aud: url, sub: "ada", scope: "mcp", exp: now() + 60 })
      .setProtectedHeader(header)
      .sign(issuer.current, { crit: { b65: true } });
  },
  "no JWT at all": async () => "hunter2-hunter2",
  "of 64 KiB": ({ issuer, url }) => issuer.mint(url, { claims: { pad: "x".repeat(48 * 1024) } }),
};

async function another(alg = "ES256") {
  const { privateKey } = await generateKeyPair(alg, { extractable: true });
  return { ...(await exportJWK(privateKey)), alg, kid: "another" };
}

async function unsigned(issuer, url, header) {
  const [, claims] = await parts(issuer.mint(url));
  return `${base64(header)}.${claims}.`;
}

/** A token signed with the public key, which everybody has, as if it were a secret. */
async function confused(issuer, url, text) {
  const { d, ...jwk } = issuer.current;
  const secret = await text(await importJWK(jwk, jwk.alg, { extractable: true }));
  return new SignJWT({ iss: issuer.url, aud: url, sub: "ada", scope: "mcp", exp: now() + 60 })
    .setProtectedHeader({ alg: "HS256", kid: jwk.kid })
    .sign(new TextEncoder().encode(secret));
}
