// Latency as small plots: a line for the median, a shadow up to the 99th of a hundred, a red
// mark where calls failed.

import { h, latency } from "./page.js";

const shortest = 2 * 60 * 1000; // span of a plot, in milliseconds
const longest = 10 * 60 * 1000;
const most = 600; // samples that are kept of an upstream

/** What the page has seen of all upstreams since it was opened. */
export class Past {
  #samples = new Map();
  #began = Date.now();

  /** How much a plot shows, in milliseconds: more as time passes. */
  get span() {
    return Math.min(longest, Math.max(shortest, Date.now() - this.#began));
  }

  /** Takes a sample of {p50, p99, failed}, with p50 undefined where nothing was done. */
  add(upstream, at, sample) {
    const all = this.#samples.get(upstream) ?? [];
    all.push({ at, ...sample });
    while (all.length > most || all[0].at < at - longest) all.shift();
    this.#samples.set(upstream, all);
  }

  of(upstream) {
    return this.#samples.get(upstream) ?? [];
  }

  /** The powers of ten between which all samples are, in milliseconds: at least two of them. */
  scale() {
    let low = Infinity;
    let high = 0;
    for (const all of this.#samples.values()) {
      for (const { p50, p99 } of all) {
        if (p50 === undefined) continue;
        low = Math.min(low, Math.max(p50, 0.1));
        high = Math.max(high, p99);
      }
    }
    if (high === 0) return [1, 100];
    low = 10 ** Math.floor(Math.log10(low));
    high = 10 ** Math.ceil(Math.log10(Math.max(high, low * 100)));
    return [low, high];
  }
}

/** The plot of the samples of a span, until now, on a scale. */
export function plot(samples, span, [low, high], large) {
  const now = Date.now();
  const x = (at) => (1000 * (1 - (now - at) / span)).toFixed(1);
  const y = (ms) => (100 * (1 - Math.log(Math.max(ms, low) / low) / Math.log(high / low))).toFixed(1);
  const parts = [];
  for (let ms = low; ms <= high * 1.01; ms *= 10) parts.push(h("line", { class: "grid", x1: 0, x2: 1000, y1: y(ms), y2: y(ms) }));
  for (const run of runs(samples)) {
    const middle = run.map((s) => `${x(s.at)},${y(s.p50)}`);
    const upper = run.map((s) => `${x(s.at)},${y(s.p99)}`);
    parts.push(h("path", { class: "p99", d: `M${middle.join("L")}L${upper.reverse().join("L")}Z` }));
    parts.push(h("path", { class: "p50", d: `M${middle.join("L")}` }));
  }
  for (const s of samples) {
    if (s.failed) parts.push(h("line", { class: "failed", x1: x(s.at), x2: x(s.at), y1: 88, y2: 100 }));
  }
  return h("svg", { class: large ? "plot large" : "plot", viewBox: "0 0 1000 100", preserveAspectRatio: "none", role: "img", "aria-label": inWords(samples) }, ...parts);
}

/** Samples in a row that have a latency. */
function runs(samples) {
  const all = [];
  let run = [];
  for (const s of samples) {
    if (s.p50 !== undefined) {
      run.push(s);
      continue;
    }
    if (run.length > 0) all.push(run);
    run = [];
  }
  if (run.length > 0) all.push(run);
  return all;
}

function inWords(samples) {
  const known = samples.filter((s) => s.p50 !== undefined);
  if (known.length === 0) return "no calls since this page was opened";
  const last = known.at(-1);
  const worst = Math.max(...known.map((s) => s.p99));
  return `median ${latency(last.p50)}, 99th of 100 ${latency(last.p99)}; at worst ${latency(worst)} since this page was opened`;
}
