// The page that tells how to connect, and to what.

import { entries } from "./entries.js";
import { h, keyed, login, proxy, say } from "./page.js";

const every = 5000; // ms between two looks
const $ = (id) => document.getElementById(id);
const askToken = login(() => look());
let chosen = ""; // an upstream; "" for all
let timer;

async function look() {
  clearTimeout(timer);
  try {
    show(await proxy.json("connect.json"));
    say($("wrong"), "");
  } catch (err) {
    if (err.status === 401) {
      $("main").hidden = true;
      return askToken(proxy.hasToken() ? "This token is not accepted." : "");
    }
    say($("wrong"), err.status ? err.message : "Nobody answers any more.");
  }
  if (!document.hidden) timer = setTimeout(look, every);
}

document.addEventListener("visibilitychange", () => document.hidden || look());

function show(told) {
  $("main").hidden = false;
  if (!told.upstreams.some((u) => u.name === chosen)) chosen = "";
  const one = told.upstreams.length === 1;
  document.querySelector(".hint").hidden = told.upstreams.length < 2;
  const all = one ? told.upstreams : [{ name: "", state: "" }, ...told.upstreams];
  keyed($("offered"), all, (u) => u.name, (u) => choice(u, told, one));
  address(told);
  full(told.operators);
}

const states = {
  idle: ["ready", "starts when it is needed"], starting: ["starting", "starts"], running: ["running", "runs"],
  failing: ["crash", "fails"], elsewhere: ["running", "on another host"], away: ["waiting", "its host is away"],
};

let lines = 0; // upstreams that have got a colour

function choice(u, told, only) {
  const state = h("small");
  const radio = h("input", { type: "radio", name: "chosen", value: u.name, checked: u.name === chosen || only, onchange: () => {
    chosen = only ? "" : u.name;
    address(latest);
  } });
  const element = h("li", {}, h("label", {}, radio, h("span", { class: "stop" }), h("span", { class: "name" }, u.name || "All of them"), state));
  const colour = u.name ? `l${lines++ % 8}` : "";
  return {
    element,
    update: ({ state: now }) => {
      const [how, text] = states[now] ?? ["", ""];
      element.className = `${colour} ${how} ${u.name ? "" : "all"} ${now === "elsewhere" || now === "away" ? "far" : ""}`;
      state.className = now === "failing" || now === "away" ? "bad" : "";
      say(state, text);
    },
  };
}

let latest;
let shown; // the addresses, as text

function address(told) {
  latest = told;
  const base = new URL(told.url ? `${told.url.replace(/\/$/, "")}/` : document.baseURI);
  const path = chosen ? `/${encodeURIComponent(chosen)}` : "";
  const http = new URL(`mcp${path}`, base).href;
  const ws = new URL(`ws${path}`, base).href.replace(/^http/, "ws");
  const token = told.proof.includes("token") && !told.proof.includes("login");
  if (shown === `${http} ${token}`) return; // nobody loses what he has marked
  shown = `${http} ${token}`;
  const sse = new URL("sse", base).href;
  const rows = [["Streamable HTTP", http], ["WebSocket", ws], ...(chosen ? [] : [["HTTP+SSE, for old clients", sse]])];
  $("addresses").replaceChildren(...rows.map(([name, url]) => h("div", {}, h("dt", {}, name), h("dd", {}, h("code", {}, url), copy(() => url, `Copy the address for ${name}`)))));
  say($("proof"), proof(told.proof));
  const open = [...$("entries").querySelectorAll("details[open] summary")].map((s) => s.textContent);
  $("entries").replaceChildren(...entries({ name: chosen || "mcp-proxy", http, ws, token }).map((e) => entry(e, open.includes(e.client))));
}

function proof(kinds) {
  const known = { token: "the token that the operator has given out", login: "a login, which clients begin by themselves", certificate: "a client certificate" };
  if (kinds.length === 0) return "";
  return `Clients need ${kinds.map((k) => known[k] ?? k).join(", or ")}.`;
}

function entry({ client, how, text }, open) {
  const pre = h("pre", { tabindex: 0 }, text);
  return h("details", { name: "client", open, "data-client": client }, h("summary", {}, client), h("p", {}, how, copy(() => text, `Copy the entry for ${client}`, pre)), pre);
}

/** A button that copies; where the browser lets no page do that, it marks the text. */
function copy(text, label, shows) {
  const button = h("button", { type: "button", class: "copy", "aria-label": label, onclick: async () => {
    try {
      await navigator.clipboard.writeText(text());
      say(button, "Copied");
    } catch {
      getSelection().selectAllChildren(shows ?? button.previousElementSibling);
      say(button, "Marked");
    }
    setTimeout(() => say(button, "Copy"), 2000);
  } }, "Copy");
  return button;
}

function full(pages) {
  const p = $("full").querySelector("p");
  const key = pages.join(" ") || "none";
  if (p.dataset.shows === key) return;
  p.dataset.shows = key;
  if (pages.length === 0) {
    p.replaceChildren("Calls, latency and events: ", h("code", {}, "mcp-proxy status"), " and ", h("code", {}, "mcp-proxy top"), " where the proxy runs. ",
      h("code", {}, "admin.listen"), " and ", h("code", {}, "admin.tokenFile"), " in its configuration open a page with them.");
    return;
  }
  p.replaceChildren("Calls, latency and events are at ", ...pages.flatMap((url, i) => [i ? " and " : "", h("a", { href: url, rel: "noreferrer" }, url)]), ", with a token of their own.");
}

look();
