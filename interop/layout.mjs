// Pages with made-up data of any size, and whether anything on them is in the way of
// something else.

/** Names as people have them: short ones, long ones with and without a place to break. */
const names = ["fs", "git", "com.example.platform.observability-and-incident-response", "search", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "browser_automation_with_playwright", "crm"];
const nameOf = (i) => (i < names.length ? names[i] : `${names[i % names.length]}-${i}`);
const says = [
  "did not start: exit status 127", "is unreachable: connection refused",
  "did not start: Error: Cannot find module '/usr/lib/node_modules/@modelcontextprotocol/server-that-has-a-very-long-name/dist/index.js' imported from /opt/app",
];
const states = ["running", "idle", "crash loop", "starting", "running", "waiting", "failed"];

/** What a proxy with n upstreams answers at the paths of both pages. */
function answers(n) {
  const now = Date.now();
  const ago = (s) => new Date(now - s * 1000).toISOString();
  const all = Array.from({ length: n }, (_, i) => ({ name: nameOf(i), state: states[i % states.length], far: i % 8 === 7 }));
  const fails = ({ state }, i) => /crash|waiting|failed/.test(state) && { cause: "exit status 1", says: says[i % says.length], event: `k3v9x2m${i % 10}`, inARow: i + 1, ...(state === "waiting" && { next: ago(-20) }) };
  const traffic = all.map((u, i) => ({
    upstream: u.name, ...(u.far ? { link: "the-host-behind-the-nat" } : { state: u.state, ...(fails(u, i) && { failed: fails(u, i) }) }),
    inFlight: i % 5, suspended: 0, queuedBytes: 0, requests: i % 3 ? 12345 * (i + 1) : 0, errors: i % 4 ? 0 : 321, perSecond: 12.5, p50Ms: 1.5 * (i + 1), p99Ms: 900 * (i + 1),
  }));
  const upstreams = all.flatMap((u, i) => (/running|starting/.test(u.state) && !u.far ? Array.from({ length: 1 + (i % 12) }, (_, k) => ({
    name: u.name, session: `S${k}ABCDEF`, era: "legacy", speaks: ["legacy", "modern"], state: k % 5 === 4 ? "stopping" : u.state, failures: 0, pid: 4242 + k, started: ago(5000), inFlight: k, unusable: 0, stderr: ["a line of a log ".repeat(12)],
  })) : []));
  const sessions = Array.from({ length: Math.min(n, 30) }, (_, i) => ({
    id: `A${i}B2C3D4`.slice(0, 8), client: i % 3 ? "claude-code" : "a-client-with-a-rather-long-name/and-a-version-1.2.3-beta.45", principal: i % 2 ? "token:continuous-integration-of-the-platform-team" : "operator", transport: ["http", "websocket", "http+sse"][i % 3], era: "legacy", began: ago(40 * (i + 1)), inFlight: i, listens: 0, queuedBytes: 0,
  }));
  const links = n ? [{ name: "the-host-behind-the-nat", up: n < 50, lost: 3, upstreams: all.filter((u) => u.far).map((u) => u.name) }] : [];
  const calls = all.slice(0, 20).map((u, i) => ({
    session: "A0B2C3D4", client: "claude-code", principal: "operator", era: "legacy", method: "tools/call", tool: i % 2 ? "read" : "a_tool_with_a_name_as_long_as_generators_of_wrappers_make_them", upstream: u.name, began: ago(3 ** (i % 9)),
    waitsFor: ["upstream", "start", "back-off", "room"][i % 4], ...(i % 4 === 2 && { detail: `not before ${ago(-20)} after exit status 1` }),
  }));
  const events = all.slice(0, 25).map((u, i) => ({
    id: `k3v9x2m${"abcdefghijklmnopqrstuvwxy"[i]}`, time: ago(60 * i), kind: "ended", upstream: u.name, what: `${u.name} ${says[i % says.length]}`, cause: "exit status 1", class: "exited", errors: i, failures: 1, inFlight: 1,
  }));
  return {
    status: { process: { role: "proxy", version: "v1.2.3-0.20261122123456-abcdefabcdef", pid: 1, began: ago(98765), draining: false }, traffic, upstreams, sessions, links },
    calls: { now: ago(0), calls, leftOut: 0 },
    events: { events, leftOut: 0, forgotten: 0 },
    readyz: n === 17 ? "upstream git: is unreachable: connection refused\nlink the-host-behind-the-nat: link lost\nnot ready\n" : "ok\n",
    "connect.json": {
      url: "", proof: ["token", "login", "certificate"].slice(0, n % 4), operators: n ? ["http://127.0.0.1:9090/"] : [],
      upstreams: all.map((u, i) => ({ name: u.name, state: u.far ? "elsewhere" : ["idle", "running", "failing", "starting", "away"][i % 5] })),
    },
  };
}

/** Answers a page, from now on, as a proxy with n upstreams. */
export async function pretend(page, n) {
  const all = answers(n);
  await page.route(/\/(status|calls|events|readyz|connect\.json)(\?.*)?$/, (route) => {
    const body = all[new URL(route.request().url()).pathname.slice(1)];
    return route.fulfill(typeof body === "string" ? { contentType: "text/plain", body } : { json: body });
  });
}

/** Every width, in both schemes. */
export const looks = [390, 800, 1024, 1280, 1440, 1920].flatMap((width) => ["light", "dark"].map((colorScheme) => ({ width, colorScheme })));

export async function lookAs(page, { width, colorScheme }) {
  await page.setViewportSize({ width, height: 900 });
  await page.emulateMedia({ colorScheme });
}

/**
 * What is in the way of what: pairs of texts, plots, controls or sections whose rectangles
 * overlap, and whatever is wider than its section or the window.
 */
export function collisions(page) {
  return page.evaluate(() => {
    const slack = 1; // pixels, of rounding
    const visible = (e) => e.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    const clipped = (rect, element) => { // to what scrolls for itself
      let { left, top, right, bottom } = rect;
      for (let e = element; e && e !== document.body; e = e.parentElement) {
        if (!/auto|scroll|hidden/.test(getComputedStyle(e).overflow)) continue;
        const of = e.getBoundingClientRect();
        [left, top, right, bottom] = [Math.max(left, of.left), Math.max(top, of.top), Math.min(right, of.right), Math.min(bottom, of.bottom)];
      }
      return { left, top, right, bottom };
    };
    const boxes = [];
    const add = (element, rects, what) => {
      for (const r of rects) {
        const c = clipped(r, element);
        if (c.right - c.left > slack && c.bottom - c.top > slack && c.right > 0) boxes.push({ ...c, element, what });
      }
    };
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = texts.nextNode(); node; node = texts.nextNode()) {
      const e = node.parentElement;
      if (!node.data.trim() || !visible(e) || e.matches("script, option, noscript *, .skip")) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      add(e, range.getClientRects(), `"${node.data.trim().slice(0, 30)}"`);
    }
    for (const e of document.querySelectorAll("svg.plot, .stop, button:not(.open, .event > button), input:not([type=radio]), select")) {
      if (visible(e)) add(e, [e.getBoundingClientRect()], e.matches(".plot") ? "a plot" : e.tagName.toLowerCase());
    }
    const sections = [...document.querySelectorAll("header, main section")].filter(visible);
    const found = [];
    const overlap = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > slack && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > slack;
    const at = (b) => `${b.what} at ${Math.round(b.left)},${Math.round(b.top)}`;
    boxes.sort((a, b) => a.top - b.top);
    boxes.forEach((a, i) => {
      for (let k = i + 1; k < boxes.length && boxes[k].top < a.bottom; k++) {
        const b = boxes[k];
        if (a.element !== b.element && !a.element.contains(b.element) && !b.element.contains(a.element) && overlap(a, b)) found.push(`${at(a)} and ${at(b)}`);
      }
      const section = a.element.closest("header, main section")?.getBoundingClientRect();
      if (section && (a.left < section.left - slack || a.right > section.right + slack)) found.push(`${at(a)} leaves its section`);
    });
    sections.forEach((a, i) => sections.slice(i + 1).forEach((b) => {
      if (overlap(a.getBoundingClientRect(), b.getBoundingClientRect())) found.push(`sections ${a.id} and ${b.id}`);
    }));
    const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    if (wide > 0) found.push(`${wide} pixels too wide`);
    return found;
  });
}
