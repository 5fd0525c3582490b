#!/usr/bin/env node
// A browser with somebody at it who agrees to everything: browser.mjs URL [STOP]
//
// As $BROWSER it opens the page that a program wants to be seen. It follows
// redirects, keeps cookies, and sends every form that it is shown. On stdout it
// says where it got.

import { appendFileSync, existsSync } from "node:fs";
import { fileURLToPath } from "node:url";

/**
 * Opens url and goes on until a page asks for nothing more. Resolves to the last
 * page: its status, url and text. A URL that starts with stop is not opened.
 */
export async function browse(url, stop) {
  const cookies = new Map();
  let request = { url: String(url) };
  for (let pages = 0; pages < 20; pages++) {
    if (stop && request.url.startsWith(stop)) return { url: request.url };
    const response = await open(request, cookies);
    const text = await response.text();
    if (response.status >= 400) throw new Error(`${request.url}: HTTP ${response.status}: ${text}`);
    const next = response.headers.get("location") ? { url: response.headers.get("location") } : form(text);
    if (!next) return { status: response.status, url: request.url, text };
    request = { ...next, url: new URL(next.url || request.url, request.url).href };
  }
  throw new Error(`no end of pages at ${request.url}`);
}

/** Cookies are kept by host and name; their paths are not looked at. */
async function open({ url, body }, cookies) {
  const { hostname } = new URL(url);
  const own = [...cookies].filter(([key]) => key.startsWith(`${hostname} `));
  const cookie = own.map(([key, value]) => `${key.slice(hostname.length + 1)}=${value}`).join("; ");
  const response = await fetch(url, { method: body ? "POST" : "GET", body, redirect: "manual", headers: { cookie } });
  for (const line of response.headers.getSetCookie()) {
    const [, name, value] = line.match(/^([^=]+)=([^;]*)/);
    if (/expires=Thu, 01 Jan 1970/i.test(line)) cookies.delete(`${hostname} ${name}`);
    else cookies.set(`${hostname} ${name}`, value);
  }
  return response;
}

/** What a page's form sends, with ada in what is empty. */
function form(html) {
  const [, attributes, inside] = html.match(/<form([^>]*)>([\s\S]*?)<\/form>/i) ?? [];
  if (inside === undefined) return undefined;
  const inputs = [...inside.matchAll(/<input([^>]*)>/gi)].map(([, text]) => text);
  const fields = inputs.map((text) => [attribute(text, "name"), attribute(text, "value") ?? "ada"]);
  return { url: attribute(attributes, "action"), body: new URLSearchParams(fields) };
}

function attribute(text, name) {
  return text.match(new RegExp(`\\b${name}="([^"]*)"`, "i"))?.[1].replaceAll("&amp;", "&");
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const [, , url, stop] = process.argv;
  const idle = existsSync(process.env.BROWSER_IDLE ?? ""); // nobody looks at the page. Looked up before tests can see that it was opened
  if (process.env.BROWSER_LOG) appendFileSync(process.env.BROWSER_LOG, `${url}\n`);
  if (idle) process.exit();
  const page = await browse(url, stop);
  console.log(page.url);
}
