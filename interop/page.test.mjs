// The two pages, in a real browser: the one for operators, and the one that tells how to
// connect. Pictures of them are left in out/page-*.png, to be looked at.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { readdirSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { join } from "node:path";
import { after, describe, test } from "node:test";
import { promisify } from "node:util";
import { desk, faults, launch, logIn, phone, picture, tabTo, visit } from "./chromium.mjs";
import { call, remote } from "./client.mjs";
import { collisions, lookAs, looks, pretend } from "./layout.mjs";
import { binary, Child, configured, directory, freePort, here, python, until } from "./proxy.mjs";

const run = promisify(execFile);
const browser = await launch();
after(() => browser.close());
const server = { command: process.execPath, args: [here("server.mjs")] };

/** A secret that calls carry, and that no page may show. */
const secret = "hunter2-in-the-arguments";

/** serve with a page for operators, at full and a port, and what else the configuration has. */
async function served(t, config, port) {
  const files = directory(t);
  const token = (name) => {
    writeFileSync(join(files, name), `${name}-token`);
    return join(files, name);
  };
  port ??= await freePort();
  const upstreams = { main: server, other: { ...server, session: "shared" }, broken: { command: "/there/is/none" } };
  const proxy = await configured(t, { upstreams, admin: { listen: [`127.0.0.1:${port}`], tokenFile: token("operator") }, ...config(token) });
  return { proxy, base: `http://${proxy.host}/`, full: `http://127.0.0.1:${port}/` };
}

/** Somebody who calls tools, and whose name would be a script if it were read as HTML. */
async function caller(t, url) {
  const transport = remote(url);
  const client = new Client({ name: '<img src="x" onerror="alert(1)">', version: "1" }, {});
  t.after(() => client.close());
  await client.connect(transport);
  return client;
}

const textOf = (page) => page.evaluate(() => document.body.innerText);
const says = (page, text) => until(`the page to say ${text}`, async () => (await textOf(page)).includes(text));

/** Looks at a page in every width and scheme. */
async function inEveryLook(page, name) {
  for (const look of looks) {
    await lookAs(page, look);
    await picture(page, `${name}-${look.width}-${look.colorScheme}`);
    assert.deepEqual(await collisions(page), [], `${look.width} wide, ${look.colorScheme}`);
    assert.deepEqual(await faults(page), [], `${look.width} wide, ${look.colorScheme}`);
  }
}

describe("for operators", { concurrency: 1 }, () => {
  test("shows nothing without the token, and keeps that for the tab alone", async (t) => {
    const { full } = await served(t, () => ({}));
    const page = await visit(browser, full);
    await page.getByLabel("Token").waitFor();
    await picture(page, "operators-login");
    assert.doesNotMatch(await textOf(page), /main|broken/);
    await logIn(page, "wrong");
    await says(page, "needs the token of admin.tokenFile");
    assert.equal(await page.locator("#main").isVisible(), false);
    await logIn(page, "operator-token");
    await says(page, "broken");
    await page.reload();
    await says(page, "broken");
    const kept = await page.evaluate(() => [document.cookie, JSON.stringify(localStorage), location.href].join(" "));
    assert.doesNotMatch(kept, /operator-token/);
    assert.doesNotMatch(await page.content(), /operator-token/);
    assert.deepEqual(page.complaints, []);
  });

  test("shows upstreams, calls, events, clients and the tap", async (t) => {
    const { base, full } = await served(t, () => ({}));
    const client = await caller(t, `${base}mcp`);
    await call(client, "main__echo", { text: secret });
    await assert.rejects(client.callTool({ name: "broken__anything" }));
    const working = client.callTool({ name: "main__work", arguments: { steps: 0, hold: true } }, undefined, { timeout: 120_000 });
    working.catch(() => {});
    const page = await visit(browser, full);
    await logIn(page, "operator-token");

    await says(page, "broken did not start: command not found");
    const row = (name) => page.locator(`#upstreams tr.up[data-name="${name}"]`);
    await until("states", async () => /running/.test(await row("main").innerText()));
    assert.match(await row("main").getByRole("img").getAttribute("aria-label"), /^median [\d.]+ m?s/);
    const inFlight = page.locator("#calls li");
    assert.match(await inFlight.innerText(), /main work for <img src="x"/);
    assert.match(await inFlight.innerText(), /its server works/);

    await page.getByRole("button", { name: "broken did not start" }).click();
    await says(page, "Who was told");
    await says(page, "mcp-proxy explain ");

    await page.locator("#tap").getByRole("button", { name: "Start" }).click();
    await says(page, "live");
    const messages = page.locator("#tap .message");
    await until("messages", async () => {
      await call(client, "main__echo", { text: secret });
      return (await messages.count()) >= 8;
    });
    assert.match(await messages.first().innerText(), /tools\/call/);
    const arrows = await messages.getByRole("img").evaluateAll((all) => [...new Set(all.map((a) => a.getAttribute("aria-label")))].sort());
    assert.deepEqual(arrows, ["client to proxy", "proxy to client", "proxy to server", "server to proxy"]);
    await page.locator("#tap").getByLabel("only errors").check();
    await page.locator("#tap").getByRole("button", { name: "Clear" }).click();
    await call(client, "main__echo", { text: secret });
    await assert.rejects(client.callTool({ name: "broken__anything" }));
    await until("an error", async () => (await messages.count()) > 0);
    for (const text of await messages.allInnerTexts()) assert.match(text, /broken|-32603/);
    await page.locator("#tap").getByRole("button", { name: "Stop" }).click();
    assert.doesNotMatch(await page.content(), new RegExp(secret));
    assert.equal(await page.locator("img").count(), 0, "a client's name is HTML");
    await picture(page, "operators-light");
    assert.deepEqual(await faults(page), []);
    assert.deepEqual(page.complaints, []);
  });

  test("in the dark, and on a phone", async (t) => {
    const { base, full } = await served(t, () => ({}));
    const client = await caller(t, `${base}mcp`);
    await assert.rejects(client.callTool({ name: "broken__anything" }));
    client.callTool({ name: "main__work", arguments: { steps: 0, hold: true } }, undefined, { timeout: 120_000 }).catch(() => {});
    for (const [name, options] of [["dark", { ...desk, colorScheme: "dark" }], ["phone", phone], ["phone-dark", { ...phone, colorScheme: "dark" }]]) {
      const page = await visit(browser, full, options);
      await logIn(page, "operator-token");
      await page.getByRole("button", { name: "broken did not start" }).click();
      await says(page, "Who was told");
      await page.getByRole("button", { name: "main" }).first().click();
      await page.locator("#tap").getByRole("button", { name: "Start" }).click();
      await says(page, "live");
      await call(client, "main__echo", { text: "h\u00e9" });
      await page.locator("#tap .message").nth(3).waitFor();
      await picture(page, `operators-${name}`);
      assert.deepEqual(await faults(page), [], name);
      assert.deepEqual(page.complaints, []);
      await page.context().close();
    }
  });

  for (const upstreams of [0, 1, 17, 60]) {
    test(`nothing is in the way of anything, with ${upstreams} upstreams`, async (t) => {
      const { full } = await served(t, () => ({}));
      const page = await visit(browser, full);
      await pretend(page, upstreams);
      await logIn(page, "operator-token");
      await until("the upstreams", async () => (await page.locator("#upstreams tr.up").count()) === upstreams && page.locator("#main").isVisible());
      await inEveryLook(page, `operators-${upstreams}`);
      for (const name of await page.locator("#upstreams .open").all()) await name.click();
      for (const event of await page.locator("#events .event > button").all()) await event.click();
      for (const look of looks) {
        await lookAs(page, look);
        assert.deepEqual(await collisions(page), [], `opened, ${look.width} wide`);
      }
      await page.context().close();
    });
  }

  test("by the keyboard alone", async (t) => {
    const { base, full } = await served(t, () => ({}));
    const client = await caller(t, `${base}mcp`);
    await assert.rejects(client.callTool({ name: "broken__anything" }));
    const page = await visit(browser, full);
    await page.getByLabel("Token").waitFor();
    await page.keyboard.type("operator-token"); // it has the focus
    await page.keyboard.press("Enter");
    await page.locator("#events li").waitFor();
    await tabTo(page, "#events .event > button");
    await page.keyboard.press("Enter");
    await says(page, "Who was told");
    await tabTo(page, "#tap form button");
    await page.keyboard.press("Space");
    await says(page, "live");
    await page.reload();
    await page.locator("#events li").waitFor();
    await page.keyboard.press("Tab"); // the first of the ways to skip
    await page.keyboard.press("Enter");
    await tabTo(page, "#upstreams .open", 1);
    const name = () => page.evaluate(() => document.activeElement.textContent);
    const before = await name();
    await page.keyboard.press("Enter");
    assert.equal(await page.evaluate(() => document.activeElement.getAttribute("aria-expanded")), "true");
    assert.match(await page.locator("#upstreams .more:visible").innerText(), /did not start: command not found \(\w{8}\)/);
    await page.waitForResponse(/status$/); // what is shown anew keeps the focus
    await page.waitForResponse(/status$/);
    assert.equal(await name(), before);
    assert.equal(await page.locator("#upstreams .more:visible").count(), 1);
    assert.deepEqual(page.complaints, []);
  });

  test("says that the proxy is gone, and that it is back", async (t) => {
    const { proxy, full } = await served(t, () => ({}));
    const page = await visit(browser, full);
    await logIn(page, "operator-token");
    await says(page, "ready");
    await proxy.stop();
    await says(page, "Nobody answers");
    assert.equal(await page.locator("#main").isVisible(), true, "what was known is still there");
    await served(t, () => ({}), new URL(full).port);
    await until("the page to go on", async () => !/Nobody answers/.test(await textOf(page)));
    assert.deepEqual(page.complaints, []);
  });

  test("at a host's socket, which a port leads to", async (t) => {
    const runtime = directory(t);
    const link = join(runtime, "link.sock");
    const host = new Child(t, binary, ["host", "--listen", `unix://${link}`, "--", server.command, ...server.args], { env: { ...process.env, XDG_RUNTIME_DIR: runtime } });
    await host.match(/listening on/);
    const [socket] = await until("the socket", () => {
      const found = readdirSync(join(runtime, "mcp-proxy")).filter((name) => name.endsWith(".sock"));
      return found.length > 0 && found;
    });
    const port = await freePort(); // as ssh -L has one
    const leads = net.createServer((c) => {
      const to = net.connect(join(runtime, "mcp-proxy", socket));
      c.pipe(to).pipe(c);
      for (const [one, other] of [[c, to], [to, c]]) one.on("error", () => other.destroy());
    });
    leads.listen(port, "127.0.0.1");
    await once(leads, "listening");
    t.after(() => leads.close());
    const page = await visit(browser, `http://127.0.0.1:${port}/`);
    await says(page, "host ");
    await says(page, "No client is here.");
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });
});

describe("how to connect", { concurrency: 1 }, () => {
  const guarded = (token) => ({ tokenFile: token("client"), allowedOrigins: ["http://127.0.0.1:1"] });

  test("asks for the token, and tells no more than names and states", async (t) => {
    const { base, full } = await served(t, guarded);
    for (const [name, options] of [["light", desk], ["dark", { ...desk, colorScheme: "dark" }], ["phone", phone]]) {
      const page = await visit(browser, base, options);
      await page.getByLabel("Token").waitFor();
      await logIn(page, "wrong");
      await says(page, "This token is not accepted.");
      await logIn(page, "client-token");
      await says(page, "Streamable HTTP");
      assert.deepEqual(await page.locator("#offered .name").allInnerTexts(), ["All of them", "main", "other", "broken"]);
      await page.locator("summary", { hasText: "VS Code" }).click();
      assert.equal(await page.locator("#full a").getAttribute("href"), full);
      await picture(page, `connect-${name}`);
      assert.deepEqual(await faults(page), [], name);
      assert.deepEqual(page.complaints, []);
      await page.context().close();
    }
  });

  for (const [how, config, env] of [["open to all", () => ({}), {}], ["with a token", guarded, { MCP_TOKEN: "client-token" }]]) {
    test(`what it says to paste works, ${how}`, async (t) => {
      const { base } = await served(t, config);
      const page = await visit(browser, base);
      if (env.MCP_TOKEN) await logIn(page, env.MCP_TOKEN);
      await page.getByRole("radio", { name: /main/ }).check();
      await says(page, `${base}mcp/main`);
      const entry = (client) => page.locator(`[data-client="${client}"] pre`).textContent();
      const options = { env: { ...process.env, ...env } };

      const py = await run(python("2.3.0"), ["-c", await entry("Python")], options);
      assert.match(py.stdout, /'echo'/);

      const file = here(`out/pasted-${process.pid}.mjs`); // where its import is found
      writeFileSync(file, await entry("TypeScript"));
      t.after(() => rmSync(file));
      const ts = await run(process.execPath, [file], options);
      assert.match(ts.stdout, /'echo'/);

      const { mcpServers } = JSON.parse(await entry("Claude Desktop"));
      assert.equal(mcpServers.main.command, "mcp-proxy");
      const desktop = new StdioClientTransport({ ...mcpServers.main, command: binary, env: { ...mcpServers.main.env, ...env }, stderr: "ignore" });
      const client = new Client({ name: "desktop", version: "1" }, {});
      t.after(() => client.close());
      await client.connect(desktop);
      assert.equal(await call(client, "echo", { text: "h\u00e9" }), "h\u00e9");

      const command = (await entry("A client that speaks stdio")).replace("mcp-proxy ", `${binary} `);
      const stdio = new StdioClientTransport({ command: "sh", args: ["-c", `exec ${command}`], env: { ...process.env, ...env }, stderr: "ignore" });
      const other = new Client({ name: "stdio", version: "1" }, {});
      t.after(() => other.close());
      await other.connect(stdio);
      assert.equal(await call(other, "echo", { text: "h\u00e9" }), "h\u00e9");

      const entries = { "VS Code": ({ servers }) => servers.main, Cursor: ({ mcpServers }) => mcpServers.main };
      for (const [name, of] of Object.entries(entries)) {
        const { url, headers } = of(JSON.parse(await entry(name)));
        assert.equal(url, `${base}mcp/main`);
        assert.equal(headers !== undefined, env.MCP_TOKEN !== undefined);
      }
      assert.match(await entry("Claude Code"), new RegExp(`^claude mcp add --transport http main ${base}mcp/main`));

      await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
      await page.locator("summary", { hasText: "Claude Code" }).click();
      await page.getByRole("button", { name: "Copy the entry for Claude Code" }).click();
      await says(page, "Copied");
      assert.equal(await page.evaluate(() => navigator.clipboard.readText()), await entry("Claude Code"));
      assert.doesNotMatch(await page.content(), /client-token/);
      assert.deepEqual(page.complaints, []);
    });
  }

  for (const upstreams of [0, 1, 17, 60]) {
    test(`nothing is in the way of anything, with ${upstreams} upstreams`, async (t) => {
      const { base } = await served(t, () => ({}));
      const page = await visit(browser, base);
      await pretend(page, upstreams);
      await page.reload();
      await until("the servers", async () => (await page.locator("#offered li").count()) >= upstreams && page.locator("#main").isVisible());
      await inEveryLook(page, `connect-${upstreams}`);
      await page.context().close();
    });
  }

  test("is not for pages of others", async (t) => {
    const port = await freePort();
    const { base, full } = await served(t, () => ({ allowedOrigins: [`http://127.0.0.1:${port}`] }));
    const site = http.createServer((_, response) => response.writeHead(200, { "Content-Type": "text/html" }).end(`<title>other</title><iframe src="${base}"></iframe><a href="${base}">a</a><a href="${full}">full</a>`));
    site.listen(port, "127.0.0.1");
    await once(site, "listening");
    t.after(() => site.close());
    const context = await browser.newContext();
    const page = await context.newPage();
    await page.goto(`http://127.0.0.1:${port}/`);
    const read = (url) => page.evaluate((u) => fetch(u).then((r) => r.text(), () => "refused"), url);
    for (const url of [base, `${base}connect.json`, `${full}status`, `${full}readyz`]) assert.equal(await read(url), "refused", url);
    assert.doesNotMatch(page.frames()[1].url() === base ? await page.frames()[1].content() : "", /Servers/);
    const [refused] = await Promise.all([page.waitForResponse(base), page.getByText("a", { exact: true }).click()]);
    assert.equal(refused.status(), 403);
    await page.goto(`http://127.0.0.1:${port}/`);
    await page.getByText("full").click(); // it has no data of its own
    await page.getByLabel("Token").waitFor();
    await context.close();
  });
});
