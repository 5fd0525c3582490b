// Clients that others wrote, which find out for themselves how to log in.
//
// Each gets a URL and nothing else. It asks, is refused, reads where to log in,
// registers, sends somebody to the browser, and asks again with its token; when
// a tool wants more than the token may, it asks for that too. It resolves to
// what it was told: the answer of echo, and that of work, which wants more.

import * as two from "@modelcontextprotocol/client";
import { Client as ClientV1 } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport as SSEv1 } from "@modelcontextprotocol/sdk/client/sse.js";
import { StreamableHTTPClientTransport as HTTPv1 } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { execFile } from "node:child_process";
import { randomUUID } from "node:crypto";
import { promisify } from "node:util";
import { browse } from "./browser.mjs";
import { modern } from "./eras.mjs";
import { here, python, pythons } from "./proxy.mjs";

/** What a provider of either TypeScript SDK keeps for one server. */
class Login {
  redirectUrl = "http://127.0.0.1:1/callback"; // nobody is there: the browser stops before it

  constructor(refreshes) {
    this.refreshes = refreshes;
  }

  get clientMetadata() {
    return {
      client_name: "interop",
      application_type: "native",
      redirect_uris: [this.redirectUrl],
      grant_types: ["authorization_code", ...(this.refreshes ? ["refresh_token"] : [])],
      response_types: ["code"],
      token_endpoint_auth_method: "none",
    };
  }

  state = () => randomUUID();
  clientInformation = () => this.client;
  saveClientInformation = (client) => void (this.client = client);
  tokens = () => this.saved;
  saveTokens = (tokens) => void (this.saved = tokens);
  codeVerifier = () => this.verifier;
  saveCodeVerifier = (verifier) => void (this.verifier = verifier);

  async redirectToAuthorization(url) {
    const { url: back } = await browse(url, this.redirectUrl);
    this.answer = new URL(back).searchParams;
  }

  /** Gives a transport what the browser brought, once; false if it brought nothing. */
  async finish(transport) {
    const { answer } = this;
    this.answer = undefined;
    if (answer) await transport.finishAuth(answer.get("code"), answer.get("iss"));
    return Boolean(answer);
  }
}

const v1 = () => new ClientV1({ name: "interop", version: "1.0.0" });
const v2 = (mode) => () => new two.Client({ name: "interop", version: "1.0.0" }, { versionNegotiation: { mode } });

// The first SDK steps up with its refresh token where it has one, which gets it no more than it had.
const steps = {
  "TypeScript v1": [v1, HTTPv1, false],
  "TypeScript v2, legacy": [v2("legacy"), two.StreamableHTTPClientTransport],
  "TypeScript v2, modern": [v2(modern), two.StreamableHTTPClientTransport],
  "TypeScript v2, either": [v2("auto"), two.StreamableHTTPClientTransport],
};

/** Each logs in at what protects a URL, and resolves to what it was told. */
export const dances = {
  ...Object.fromEntries(Object.entries(steps).map(([name, how]) => [name, (t, url) => dance(t, url, ...how)])),
  ...Object.fromEntries(pythons.map((release) => [`python-sdk ${release}`, (t, url) => danceAs(release, url)])),
};

/** The clients of the older transport log in too; none of them steps up. */
export const older = { "TypeScript v1": [v1, SSEv1], "TypeScript v2": [v2("legacy"), two.SSEClientTransport] };

async function dance(t, url, ...how) {
  const { call } = await loggedIn(t, url, ...how);
  return { said: await call("echo", { text: "h\u00e9" }), stepped: await call("work", { steps: 0, hold: false }) };
}

/** A client that logged in, its tokens, and how it calls a tool, and logs in again where it must. */
export async function loggedIn(t, url, newClient = v1, Transport = HTTPv1, refreshes = true) {
  const login = new Login(refreshes);
  let client, transport;
  const again = async (attempt) => {
    try {
      return await attempt();
    } catch (err) {
      if (!(await login.finish(transport))) throw err;
      return attempt();
    }
  };
  await again(async () => {
    transport = new Transport(new URL(url), { authProvider: login });
    client = newClient();
    await client.connect(transport);
  });
  t.after(() => client.close());
  const call = async (name, args) => (await again(() => client.callTool({ name, arguments: args }))).content[0].text;
  return { client, transport, login, call };
}

async function danceAs(release, url) {
  const browser = [process.execPath, here("browser.mjs")];
  const { stdout } = await promisify(execFile)(python(release), [here("python/login.py"), url, ...browser], {
    timeout: 60_000,
    killSignal: "SIGKILL",
  });
  return JSON.parse(stdout);
}
