// The page for operators: upstreams, calls, events, clients and the tap, from the same JSON
// that the commands print.

import { breakable, duration, h, keyed, latency, login, proxy, say } from "./page.js";
import { Past, plot } from "./plot.js";
import { story } from "./story.js";
import { Tap } from "./tap.js";

const every = 2000; // ms between two looks
const $ = (id) => document.getElementById(id);

const past = new Past();
const colours = new Map(); // classes of upstreams' lines
const askToken = login(() => look());
const tap = new Tap($("tap"), colourOf, (err) => askToken(err.message));
let paused = false;
let skew = 0; // of the proxy's clock, in ms

/** The class of an upstream's line: always the same for a name, and different as far as that goes. */
function colourOf(upstream) {
  if (!colours.has(upstream)) colours.set(upstream, `l${colours.size % 8}`);
  return colours.get(upstream);
}

const now = () => Date.now() + skew;
const since = (time) => duration((now() - Date.parse(time)) / 1000);

/* Looking */

let timer;

async function look() {
  clearTimeout(timer);
  let seen;
  try {
    seen = await Promise.all([
      proxy.json("status"), optional("calls"), proxy.ask("readyz?verbose", { expect: [503] }).then((ready) => ready.text()), optional("events?limit=200"),
    ]);
  } catch (err) {
    if (err.status === 401) {
      $("main").hidden = true;
      return askToken(err.message);
    }
    unreachable(err);
  }
  if (!paused && !document.hidden) timer = setTimeout(look, every);
  if (seen) show(...seen);
}

function unreachable(err) {
  document.body.classList.add("stale");
  say($("asked"), "no answer");
  health("bad", err.status ? err.message : "Nobody answers. The proxy has stopped, or cannot be reached.");
}

/** What is at a path, undefined if this process has no such thing. */
async function optional(path) {
  const response = await proxy.ask(path, { expect: [404] });
  return response.ok ? response.json() : undefined;
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused) look();
});

$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", paused);
  say($("pause"), paused ? "Go on" : "Pause");
  look();
});

/* Showing */

function show(status, calls, ready, more) {
  if (calls) skew = Date.parse(calls.now) - Date.now();
  document.body.classList.remove("stale");
  say($("asked"), `at ${new Date(now()).toTimeString().slice(0, 8)}`);
  $("main").hidden = false;
  const lines = linesOf(status);
  for (const line of lines) sample(line);
  showHealth(ready);
  showTotals(status, calls, lines);
  showUpstreams(lines);
  showLinks(status.links);
  showReplicas(status.replicas ?? []);
  showCalls(calls);
  showEvents(more);
  showClients(status.sessions);
  tap.offer(lines.map((l) => l.name));
  say($("where"), `${status.process.role} ${status.process.version}, for ${since(status.process.began)}`);
}

function sample({ name, traffic: t }) {
  past.add(name, Date.now(), t?.requests ? { p50: t.p50Ms, p99: t.p99Ms, failed: t.errors > 0 } : {});
}

/** One line for each upstream, those that run here first, with its servers and its link. */
function linesOf(status) {
  const lines = new Map();
  const line = (name) => lines.get(name) ?? lines.set(name, { name, servers: [] }).get(name);
  for (const t of status.traffic ?? []) line(t.upstream).traffic = t;
  for (const u of status.upstreams) line(u.name).servers.push(u);
  for (const l of status.links) for (const name of l.upstreams ?? []) line(name).link = l;
  const all = [...lines.values()];
  for (const l of all) colourOf(l.name);
  return all;
}

function showHealth(text) {
  const wrong = text.trim().split("\n").filter((line) => !/: ok$/.test(line) && line !== "ok" && line !== "not ready");
  if (wrong.length === 0) health("well", "ready");
  else health("bad", `not ready: ${wrong.join("; ")}`);
}

function health(how, text) {
  $("health").className = how;
  say($("health"), text);
}

function showTotals(status, calls, lines) {
  const sum = (of) => lines.reduce((n, { traffic }) => n + (traffic?.[of] ?? 0), 0);
  const all = [
    ["in flight", calls ? calls.calls.length + calls.leftOut : status.sessions.reduce((n, s) => n + s.inFlight, 0)],
    ["requests/min", sum("requests")],
    ["failed/min", sum("errors")],
    ["clients", status.sessions.length],
  ];
  keyed($("totals"), all, ([name]) => name, ([name]) => {
    const dd = h("dd");
    return { element: h("div", {}, h("dt", {}, name), dd), update: ([, n]) => say(dd, n) };
  });
}

/** Shows a list in a section: how many there are, and what is said if there are none. */
function list(section, items, keyOf, make, note = items.length || "") {
  const root = $(section);
  say(root.querySelector("h2 small"), note);
  root.querySelector(".none").hidden = items.length > 0;
  const table = root.querySelector("table");
  if (table) table.hidden = items.length === 0;
  keyed(root.querySelector("tbody, ol:not([role])"), items, keyOf, make);
}

/* Upstreams */

const classes = { "crash loop": "crash", failed: "waiting", resting: "idle" }; // of states that do not look as they are called
const alarm = { "crash loop": "bad", waiting: "warn", failed: "warn" };

/** What an upstream is at, as a word, and how many servers it has. */
function stateOf({ link, servers, traffic }) {
  if (link) return link.up ? { state: "idle", text: `at ${link.name}` } : { state: "waiting", text: "link is down", how: "bad" };
  const state = traffic?.state ?? "idle";
  const counts = new Map();
  for (const s of servers) counts.set(s.state, (counts.get(s.state) ?? 0) + 1);
  const there = [...counts].map(([of, n]) => (servers.length === 1 ? of : `${n} ${of}`));
  return { state, text: (counts.has(state) ? there : [state, ...there]).join(", "), how: alarm[state] ?? "" };
}

/** How a server failed last, in words. */
function failureOf({ traffic }) {
  const f = traffic?.failed;
  if (!f) return "";
  const often = f.inARow > 1 ? `, ${f.inARow} times in a row` : "";
  const wait = f.next && Date.parse(f.next) > now() ? `, no start for ${duration((Date.parse(f.next) - now()) / 1000)}` : "";
  return `${f.says} (${f.event})${often}${wait}`;
}

let shownLines = [];

function showUpstreams(lines) {
  shownLines = lines;
  const rows = lines.flatMap((line) => [{ line, key: `${line.name} ` }, { line, key: `${line.name} more`, more: true }]);
  const scale = past.scale();
  for (const row of rows) row.scale = scale;
  list("upstreams", rows, (r) => r.key, (r) => (r.more ? moreRow(r.line) : upstreamRow(r.line)), lines.length || "");
  const last = lines.at(-1);
  for (const element of $("upstreams").querySelectorAll("tr")) element.classList.toggle("last", element.dataset.name === last?.name);
  say($("upstreams").querySelector("th.plots small"), `${latency(scale[0])} to ${latency(scale[1])}, ${duration(past.span / 1000)}`);
}

const opened = new Set(); // names of upstreams whose details are shown

function upstreamRow({ name }) {
  const cells = Object.fromEntries(["state", "inFlight", "requests", "failed", "p50", "p99"].map((c) => [c, h("td", { class: c === "state" ? null : "n", "data-label": labels[c] })]));
  const meta = h("small");
  const plots = h("td", { class: "plots" });
  const button = h("button", { type: "button", class: "open", "aria-expanded": "false", onclick: () => toggle(name, button) }, ...breakable(name));
  const element = h("tr", { "data-name": name }, h("td", { class: "rail" }, h("span", { class: "stop" }), button, meta), ...Object.values(cells), plots);
  return {
    element,
    update: ({ line, scale }) => {
      const state = stateOf(line);
      element.className = `up ${colourOf(name)} ${classes[state.state] ?? state.state} ${line.link ? "far" : ""}`;
      cells.state.className = state.how ?? "";
      say(cells.state, state.text);
      say(meta, metaOf(line));
      const t = line.traffic;
      say(cells.inFlight, t?.inFlight ?? "");
      say(cells.requests, t?.requests ?? "");
      say(cells.failed, t?.errors ?? "");
      cells.failed.classList.toggle("bad", t?.errors > 0);
      say(cells.p50, t?.requests ? latency(t.p50Ms) : "");
      say(cells.p99, t?.requests ? latency(t.p99Ms) : "");
      plots.replaceChildren(plot(past.of(name), past.span, scale));
    },
  };
}

const labels = { inFlight: "in flight", requests: "requests/min", failed: "failed/min", p50: "p50", p99: "p99" };

function metaOf(line) {
  const eras = [...new Set(line.servers.flatMap((s) => s.speaks ?? []))];
  return [line.link ? `behind ${line.link.name}` : "", eras.join(" and "), line.servers.length > 1 ? `${line.servers.length} servers` : ""].filter(Boolean).join(", ");
}

/** Links to hosts: those that have announced nothing yet, too. */
function showLinks(links) {
  keyed($("links"), links, (l) => l.name, ({ name }) => {
    const state = h("span");
    const rest = h("small");
    return {
      element: h("li", {}, "link ", h("strong", {}, name), " ", state, " ", rest),
      update: ({ up, through, why, lost, upstreams }) => {
        say(state, up ? "up" : "down");
        state.className = up ? "well" : "bad";
        const leads = upstreams?.length ? `${up ? "leads" : "led"} to ${upstreams.join(", ")}` : (why ?? "its host has announced nothing yet");
        say(rest, [leads, through ? `through replica ${through}` : "", lost ? `lost ${lost === 1 ? "once" : `${lost} times`}` : ""].filter(Boolean).join(", "));
      },
    };
  });
}

/** The proxies behind the same address, this one first. */
function showReplicas(replicas) {
  keyed($("replicas"), replicas, (r) => r.instance, ({ instance, address, self }) => {
    const state = h("span");
    const rest = h("small");
    return {
      element: h("li", {}, "replica ", h("strong", {}, instance), " ", state, " ", rest),
      update: ({ state: is, linked, unreachable, differs, version, sessions }) => {
        say(state, unreachable ? "cannot be reached" : is);
        state.className = unreachable ? "bad" : is === "ready" ? "well" : "";
        say(rest, [self ? "this one" : "", address, version, `${sessions} sessions`, linked ? "linked" : "", differs ? "its configuration differs" : ""].filter(Boolean).join(", "));
      },
    };
  });
}

function toggle(name, button) {
  if (!opened.delete(name)) opened.add(name);
  button.setAttribute("aria-expanded", opened.has(name));
  for (const row of $("upstreams").querySelectorAll(".more")) row.hidden = !opened.has(row.dataset.name);
  showUpstreams(shownLines);
}

/** What is told of each server of an upstream. */
function moreRow({ name }) {
  const large = h("div");
  const failed = h("p", { class: "warn" });
  const waiting = h("p", { class: "soft" });
  const none = h("p", { class: "none" });
  const servers = h("div");
  const element = h("tr", { class: `more ${colourOf(name)}`, "data-name": name, hidden: true },
    h("td", { class: "rail", colspan: 8 }, large, failed, waiting, none, servers));
  return {
    element,
    update: ({ line, scale }) => {
      if (!opened.has(name)) return;
      large.replaceChildren(plot(past.of(name), past.span, scale, true), h("p", { class: "scale" }, h("span", {}, `${duration(past.span / 1000)} ago`), h("span", {}, `grid: powers of ten from ${latency(scale[0])} to ${latency(scale[1])}`), h("span", {}, "now")));
      const t = line.traffic;
      say(failed, failureOf(line));
      say(waiting, [t?.suspended ? `${t.suspended} suspended calls wait for their clients` : "", t?.queuedBytes ? `${t.queuedBytes} bytes wait until it reads` : ""].filter(Boolean).join(", "));
      keyed(servers, line.servers, (s) => `${s.session} ${s.era}`, serverPart);
      say(none, line.link ? "Its servers run at the host. Ask that for more." : "No server of it runs: one starts when it is needed.");
      none.hidden = line.servers.length > 0;
    },
  };
}

function serverPart() {
  const dl = h("dl");
  const pre = h("pre", { tabindex: 0, "aria-label": "last lines of stderr" });
  return {
    element: h("div", { class: "server" }, dl, pre),
    update: (s) => {
      const facts = [
        ["of", s.session], ["state", s.state], ["process", s.pid], ["for", s.started && since(s.started)],
        ["era", [s.era, s.speaks?.length && `its server speaks ${s.speaks.join(" and ")}`].filter(Boolean).join("; ")],
        ["in flight", s.inFlight], ["failures before", s.failures || null],
        ["no message on stdout", s.unusable ? `${s.unusable} lines` : null],
        ["for nobody known", s.unattributed ? `${s.unattributed} messages dropped` : null],
      ].filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
      keyed(dl, facts.flatMap(([name, value]) => [{ key: `${name}:`, tag: "dt", text: name }, { key: name, tag: "dd", text: value }]), (f) => f.key, (f) => {
        const element = h(f.tag);
        return { element, update: ({ text }) => say(element, text) };
      });
      pre.hidden = !s.stderr?.length;
      say(pre, (s.stderr ?? []).join("\n"));
    },
  };
}

/* Calls */

const waits = {
  upstream: "its server works", start: "its server is starting", "back-off": "its server is held back", link: "the link is down", login: "somebody has to log in",
  client: "the client was asked something", room: "there is no room", proxy: "the proxy asks several",
};

function showCalls(calls) {
  const all = calls?.calls ?? [];
  const note = all.length === 0 ? "" : `${all.length + calls.leftOut}, the oldest first${calls.leftOut ? `, ${calls.leftOut} not shown` : ""}`;
  list("calls", all.slice(0, 50), callKey, callRow, note);
}

function callKey(c) {
  return [c.session, c.method, c.tool, c.began].join(" ");
}

function callRow(c) {
  const age = h("span", { class: "age" });
  const wait = h("span", { class: "waits" });
  const bar = h("span", { class: "bar" });
  const element = h("li", { class: `call ${c.upstream ? colourOf(c.upstream) : ""}` }, age,
    h("span", { class: "what" }, h("span", { class: "line" }, c.upstream ?? "all"), ` ${c.tool ?? ""} `, h("small", {}, [c.tool ? "" : c.method, `for ${c.client ?? (c.session || "a client")}`, c.principal].filter(Boolean).join(", "))),
    wait, bar);
  return {
    element,
    update: (c) => {
      const seconds = (now() - Date.parse(c.began)) / 1000;
      say(age, duration(seconds));
      say(wait, [waits[c.waitsFor] ?? c.waitsFor, c.detail].filter(Boolean).join(", "));
      wait.className = `waits ${c.waitsFor === "upstream" ? "soft" : "warn"}`;
      bar.style.width = `${Math.min(100, 14 * Math.log2(1 + seconds))}%`;
    },
  };
}

/* Events */

function showEvents(more) {
  if (!more) return;
  const hidden = more.leftOut + more.forgotten;
  list("events", alike(more.events), (all) => kindOf(all[0]), eventRow, [more.events.length || "", hidden ? `${hidden} older ones are not shown` : ""].filter(Boolean).join(", "));
}

const kindOf = (e) => [e.kind, e.upstream, e.link, e.what].join("\n");

/** Events that say the same about the same are one entry. It stands where its newest is. */
function alike(events) {
  const all = new Map();
  for (const e of events) all.get(kindOf(e))?.push(e) ?? all.set(kindOf(e), [e]);
  return [...all.values()];
}

function eventRow([first]) {
  const body = h("div", { hidden: true });
  const aside = h("span", { class: "aside" });
  const time = h("time");
  let newest;
  const button = h("button", { type: "button", "aria-expanded": "false", onclick: () => {
    body.hidden = !body.hidden;
    button.setAttribute("aria-expanded", !body.hidden);
    others.hidden = body.hidden || others.children.length < 2;
    if (!body.hidden) tell(newest.id, body);
  } }, time, h("span", { class: "what" }, first.what || first.cause), aside);
  const others = h("p", { class: "others" });
  return {
    element: h("li", { class: `event ${first.upstream ? colourOf(first.upstream) : ""}` }, button, body, others),
    update: (all) => {
      [newest] = all;
      time.dateTime = newest.time;
      say(time, since(newest.time));
      const errors = all.reduce((n, e) => n + e.errors, 0);
      const often = all.length > 1 ? `${all.length} times in ${duration((Date.parse(newest.time) - Date.parse(all.at(-1).time)) / 1000)}` : "";
      say(aside, [newest.id, often, newest.link && `link ${newest.link}`, errors ? `${errors} ${errors === 1 ? "call" : "calls"} failed` : ""].filter(Boolean).join(" \u00b7 "));
      others.hidden = body.hidden || all.length === 1;
      keyed(others, all.slice(0, 20), (e) => e.id, (e) => ({ element: h("button", { type: "button", title: new Date(e.time).toLocaleString(), onclick: () => tell(e.id, body) }, e.id) }));
    },
  };
}

/** Tells the story of an event. */
async function tell(id, body) {
  try {
    body.replaceChildren(story(await proxy.json(`events/${encodeURIComponent(id)}`)));
  } catch (err) {
    body.replaceChildren(h("p", { class: "story" }, err.message));
  }
}

/* Clients */

function showClients(sessions) {
  const most = 50;
  list("clients", sessions.slice(-most).reverse(), (s) => s.id, clientRow, sessions.length > most ? `${sessions.length}, the last ${most}` : sessions.length || "");
}

function clientRow(s) {
  const cells = Object.fromEntries(["client", "over", "inFlight", "began"].map((c) => [c, h("td", { class: /inFlight|began/.test(c) ? "n" : null })]));
  return {
    element: h("tr", {}, h("td", {}, h("code", {}, s.id)), ...Object.values(cells)),
    update: (s) => {
      say(cells.client, [s.client, s.principal].filter(Boolean).join(", ") || "unnamed");
      say(cells.over, [s.transport, s.era].filter(Boolean).join(", "));
      say(cells.inFlight, s.inFlight);
      say(cells.began, since(s.began));
    },
  };
}

look();
