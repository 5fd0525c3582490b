// What both pages need: elements, and what the proxy answers.

const svgNames = new Set(["svg", "use", "path", "line", "circle", "text", "g", "title"]);

/**
 * A new element. Attributes that are undefined, null or false are left out, those that begin
 * with "on" are listeners. Children are elements or text, which is never read as HTML.
 */
export function h(tag, attributes = {}, ...children) {
  const element = svgNames.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null));
  return element;
}

/** A name that may be broken where its parts end. */
export const breakable = (name) => name.split(/(?<=[._/-])/).flatMap((part) => [part, h("wbr")]);

/** Sets a text, if it has changed. */
export function say(element, text) {
  if (element.textContent !== String(text)) element.textContent = text;
}

/**
 * Shows items as the children of a parent. Those that stay keep their element, with its focus
 * and what somebody has opened. make(item) returns what has an element and update(item).
 */
export function keyed(parent, items, keyOf, make) {
  const before = (parent.shown ??= new Map());
  const now = new Map();
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    if (now.has(key)) continue;
    const row = before.get(key) ?? make(item);
    row.update?.(item);
    now.set(key, row);
    if (row.element === at) at = at.nextElementSibling;
    else parent.insertBefore(row.element, at);
  }
  for (const [key, row] of before) if (now.get(key) !== row) row.element.remove();
  parent.shown = now;
}

/** Why the proxy did not answer as asked; status is that of HTTP. */
export class Refused extends Error {
  constructor(status, text) {
    super(text.trim());
    this.status = status;
  }
}

const kept = "mcp-proxy token";

/** The proxy that this page is from. The token is kept for as long as the tab is open. */
export const proxy = {
  /** What is at a path. A status of 400 and above is a Refused, unless it is among those expected. */
  async ask(path, { expect = [], ...options } = {}) {
    const headers = { Accept: "application/json, text/plain;q=0.9", ...options.headers };
    const token = sessionStorage.getItem(kept);
    if (token) headers.Authorization = `Bearer ${token}`;
    const response = await fetch(new URL(path, document.baseURI), { cache: "no-store", redirect: "error", ...options, headers });
    if (response.ok || expect.includes(response.status)) return response;
    throw new Refused(response.status, await response.text());
  },

  async json(path) {
    return (await this.ask(path)).json();
  },

  hasToken: () => sessionStorage.getItem(kept) !== null,
};

/**
 * The form that asks for the token. on is called when there is another one. The result shows
 * the form, and says why if a token was refused.
 */
export function login(on) {
  const form = document.getElementById("login");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(kept, form.token.value.trim());
    form.token.value = "";
    form.hidden = true;
    on();
  });
  return (why) => {
    say(document.getElementById("refused"), proxy.hasToken() || /without|cannot/.test(why) ? why : "");
    sessionStorage.removeItem(kept);
    if (!form.hidden) return;
    form.hidden = false;
    form.token.focus();
  };
}

/** Seconds as people write them: 0.4 s, 12 s, 3 min, 2 h 5 min, 4 d. */
export function duration(seconds) {
  const s = Math.max(0, seconds);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d`;
}

/** Milliseconds of an answer: 0.4 ms, 12 ms, 1.2 s. */
export function latency(ms) {
  if (ms === undefined || ms === null) return "";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return `${(ms / 1000).toFixed(ms < 10000 ? 1 : 0)} s`;
}
