// The official conformance suite as a child process, and what it found.

import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { Child, here } from "./proxy.mjs";

const suite = here("node_modules/@modelcontextprotocol/conformance");

/** The last revision with a handshake, and the first without. */
export const revisions = { legacy: "2025-11-25", modern: "2026-07-28" };

/** The scenarios that a revision requires of a side: "server" or "client". */
export function required(revision, side) {
  const text = readFileSync(`${suite}/requirements/${revision}.yaml`, "utf8");
  const [, section] = text.match(new RegExp(`^${side}:\\n((?: {2}- .*\\n)+)`, "m"));
  return section.trim().split("\n").map((line) => line.replace(/^ *- /, ""));
}

/** Asserts that the server at url meets a revision, all of it. */
export async function meets(t, url, revision, count, name) {
  const { checks, why } = await run(t, url, revision, name);
  const scenarios = required(revision, "server");
  const failed = scenarios.filter((scenario) => !passes(checks, scenario));
  assert.deepEqual(failed, [], failed.flatMap((scenario) => why[scenario] ?? "not run").join("\n"));
  assert.equal(scenarios.length, count);
}

/** Asserts that a revision is met but for what a file lists, which must all fail. */
export async function meetsBut(t, url, revision, failures, name) {
  const { code, output } = await run(t, url, revision, name, ["--expected-failures", here(failures)]);
  assert.equal(code, 0, output.slice(output.indexOf("\nTotal")));
}

/**
 * Runs the suite against url. checks are their outcomes, keyed "scenario/check#n",
 * why is what the suite says of those that failed, keyed by scenario.
 */
export async function run(t, url, revision, name, flags = []) {
  const out = here(`out/conformance-${name.replaceAll(/[ ,]+/g, "-")}-${revision}`);
  rmSync(out, { recursive: true, force: true });
  const args = ["server", "--url", url, "--requirements", revision, "-o", out, ...flags];
  const child = new Child(t, process.execPath, [`${suite}/dist/index.js`, ...args]);
  await child.closed;
  return { ...outcomes(out), code: child.process.exitCode, output: child.output };
}

function outcomes(out) {
  const checks = new Map();
  const why = {};
  for (const dir of readdirSync(out)) {
    const scenario = dir.replace(/^server-/, "").replace(/-\d{4}-\d\d-\d\dT.*$/, "");
    const file = `${out}/${dir}/checks.json`;
    const seen = {};
    if (!existsSync(file)) continue; // the scenario broke off
    for (const { id, status, errorMessage } of JSON.parse(readFileSync(file, "utf8"))) {
      seen[id] = (seen[id] ?? 0) + 1;
      checks.set(`${scenario}/${id}#${seen[id]}`, status);
      if (status === "FAILURE") (why[scenario] ??= []).push(`${id}: ${errorMessage}`);
    }
  }
  return { checks, why };
}

function passes(checks, scenario) {
  const own = [...checks].filter(([check]) => check.startsWith(`${scenario}/`));
  return own.length > 0 && own.every(([, status]) => status !== "FAILURE");
}

/** Has a client, a command, go through one of the suite's scenarios for clients. Those of extensions are of no revision. */
export async function client(t, command, revision, scenario) {
  const args = ["client", "--command", command, "--spec-version", revision, "--scenario", scenario, "--force"];
  const out = here(`out/conformance-client-${scenario.replace("/", "-")}-${revision}`);
  const child = new Child(t, process.execPath, [`${suite}/dist/index.js`, ...args, "-o", out]);
  await child.closed;
  assert.equal(child.process.exitCode, 0, child.output);
  assert.match(child.output, /OVERALL: PASSED/); // a scenario that is skipped fails nothing
}

const json = "server-sse-polling/server-sse-content-type#1";

/** What is worse for proxied than for direct, and what is better. */
export function compare(direct, proxied) {
  // Where the proxy answers with JSON, as it may, how a stream begins is not asked.
  const asked = ([check]) => !check.startsWith("server-sse-polling/") || !proxied.has(json);
  const all = [...direct].filter(asked);
  return {
    worse: all.filter(([check, status]) => rank(proxied.get(check)) < rank(status)).map(([check]) => check),
    better: all.filter(([check, status]) => rank(proxied.get(check)) > rank(status)).map(([check]) => check),
  };
}

/** Outcomes from worst to best; a check that did not run says nothing good. */
function rank(status) {
  return { undefined: 0, FAILURE: 0, SKIPPED: 1, WARNING: 2, INFO: 3, SUCCESS: 3 }[status];
}
