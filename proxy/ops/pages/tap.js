// The live tap: messages as they pass, each an arrow between client, proxy and server.

import { h, latency, proxy, say } from "./page.js";

const most = 400; // lines that are shown
const perSecond = 50; // lines that are asked for

/** The tap's section. colourOf is the class of an upstream's line, fail is told why there is no tap. */
export class Tap {
  #stop; // of the stream that runs; undefined if none does
  #waiting = []; // lines that are not shown yet

  constructor(section, colourOf, fail) {
    this.section = section;
    this.colourOf = colourOf;
    this.fail = fail;
    this.form = section.querySelector("form");
    this.list = section.querySelector("ol");
    this.note = section.querySelector("h2 small");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#stop) this.stop();
      else this.start();
    });
    this.form.addEventListener("change", () => this.#stop && this.start());
    this.form.querySelector(".clear").addEventListener("click", () => this.list.replaceChildren());
  }

  /** Offers upstreams in the filter. */
  offer(names) {
    const select = this.form.elements.upstream;
    const now = [...select.options].slice(1).map((o) => o.value);
    if (now.join("\n") === names.join("\n")) return;
    const chosen = select.value;
    select.replaceChildren(select.options[0], ...names.map((name) => h("option", { value: name }, name)));
    select.value = names.includes(chosen) ? chosen : "";
  }

  stop() {
    this.#stop?.abort();
    this.#stop = undefined;
    this.#running(false);
  }

  async start() {
    this.#stop?.abort();
    const stop = (this.#stop = new AbortController());
    this.#running(true);
    const query = new URLSearchParams({ rate: perSecond });
    for (const [name, value] of new FormData(this.form)) if (value) query.set(name, value);
    let why = "stopped";
    try {
      const response = await proxy.ask(`tap?${query}`, { signal: stop.signal });
      say(this.note, "live");
      await this.#read(response.body.pipeThrough(new TextDecoderStream()), stop.signal);
      why = "the proxy has ended the tap";
    } catch (err) {
      if (stop.signal.aborted) return; // whoever did that knows why
      if (err.status === 401) this.fail(err);
      why = err.message;
    }
    if (this.#stop === stop) {
      this.stop();
      say(this.note, why);
    }
  }

  async #read(stream, signal) {
    let rest = "";
    const reader = stream.getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done || signal.aborted) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line) this.#waiting.push(JSON.parse(line));
      this.#waiting.splice(0, this.#waiting.length - most);
      requestAnimationFrame(() => this.#show());
    }
  }

  #show() {
    if (this.#waiting.length === 0) return;
    this.list.prepend(...this.#waiting.splice(0).reverse().map((line) => this.#row(line)));
    while (this.list.children.length > most) this.list.lastElementChild.remove();
  }

  #row(m) {
    if (m.leftOut !== undefined) return h("li", { class: "leftout" }, `${m.leftOut} left out`);
    const failed = m.error !== undefined;
    const arrow = h("svg", { class: "lane", viewBox: "0 0 68 14", role: "img", "aria-label": wayInWords(m) }, h("use", { href: `#${m.side}-${m.way}` }));
    return h("li", { class: `message ${m.kind} ${failed ? "failed" : ""} ${m.upstream ? this.colourOf(m.upstream) : ""}` },
      h("time", { datetime: m.time }, clock(m.time)),
      arrow,
      h("span", { class: "what" }, subject(m), " ", h("span", { class: "who" }, about(m))),
      h("span", { class: "n" }, size(m.bytes)),
      h("span", { class: "n" }, m.tookMs === undefined ? "" : latency(m.tookMs)));
  }

  #running(yes) {
    say(this.form.querySelector("button"), yes ? "Stop" : "Start");
    say(this.note, "");
    if (!yes) return;
    this.list.hidden = false;
    this.section.querySelector(".lanes").hidden = false;
    this.section.querySelector(".none").hidden = true;
  }
}

function wayInWords({ side, way }) {
  if (side === "client") return way === "in" ? "client to proxy" : "proxy to client";
  return way === "in" ? "server to proxy" : "proxy to server";
}

function subject(m) {
  const name = [m.method ?? "", m.tool].filter(Boolean).join(" ");
  return m.kind === "response" ? `\u2190 ${name || "response"}` : name;
}

function about(m) {
  const error = m.error && [m.error.reason, m.error.code, m.error.event].filter(Boolean).join(" ");
  const who = m.side === "client" ? m.client ?? m.session : m.upstream;
  return [m.id === undefined ? "" : `#${JSON.stringify(m.id)}`, who, error].filter(Boolean).join(" \u00b7 ");
}

function clock(time) {
  const t = new Date(time);
  return `${t.toTimeString().slice(0, 8)}.${String(t.getMilliseconds()).padStart(3, "0")}`;
}

function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  return bytes < 1e6 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / 1048576).toFixed(1)} MiB`;
}
