// The story of an event: what has ended, who was hurt, what came before and after.

import { duration, h } from "./page.js";

/** All that is known of an event, as text for people. */
export function story(e) {
  const at = Date.parse(e.time);
  return h("div", { class: "story" },
    ...sentences(e, at).map((text) => h("p", {}, text)),
    ...part("In flight", (e.calls ?? []).map((c) => `${c.method}${c.tool ? ` ${c.tool}` : ""}, for ${duration(c.ageMs / 1000)}, of ${c.client ?? (c.session || "a client")}`), e.callsLeftOut),
    ...part("Who was told", (e.told ?? []).map((t) => `${t.client ?? t.session}${t.principal ? ` (${t.principal})` : ""}: ${count(t.errors, "error")}`), e.toldLeftOut),
    ...part("What came before", (e.before ?? []).map((b) => `${duration((at - Date.parse(b.time)) / 1000)} earlier: ${b.what} (${b.id})`)),
    ...(e.stderr?.length ? [h("h3", {}, "Last lines of stderr"), h("pre", { tabindex: 0 }, e.stderr.join("\n"))] : []),
    h("p", { class: "soft" }, h("code", {}, `mcp-proxy explain ${e.id}`), " tells the same."));
}

function sentences(e, at) {
  const all = [];
  const since = (time) => duration((at - Date.parse(time)) / 1000);
  if (e.host) all.push(`The host behind ${e.link} has seen it, and knows the rest.`);
  const end = e.exitStatus === undefined ? e.cause : `exit status ${e.exitStatus}`;
  const whose = e.session ? `, of session ${e.session}` : "";
  if (e.pid) all.push(`Process ${e.pid}${whose} had run for ${e.began ? since(e.began) : "an unknown time"}. Its end: ${end}.`);
  else if (e.began) all.push(`It had been there for ${since(e.began)}${whose}.${end ? ` Its end: ${end}.` : ""}`);
  else if (end) all.push(`The cause: ${end}${whose}.`);
  if (e.says) all.push(`It says: ${e.says}`);
  if (e.inFlight) all.push(`${count(e.inFlight, "request")} ${e.inFlight === 1 ? "was" : "were"} in flight.`);
  if (e.errors) all.push(`${count(e.errors, "call")} got its error.`);
  if (e.failures > 1) all.push(`That was failure ${e.failures} in a row${e.state ? `, so it is ${e.state === "crash loop" ? "in a crash loop" : e.state}` : ""}.`);
  if (e.started) all.push(`It was started again ${duration((Date.parse(e.started) - at) / 1000)} later.`);
  else if (e.next) all.push(`No start before ${new Date(e.next).toTimeString().slice(0, 8)}.`);
  else if (e.kind === "ended") all.push("It starts again when somebody next needs it.");
  if (e.unusable) all.push(`${count(e.unusable, "line")} on its stdout ${e.unusable === 1 ? "was" : "were"} no message.`);
  if (e.trimmed) all.push("Stderr and lists were forgotten to make room for newer events.");
  return all;
}

/** A part with a list, or nothing if that is empty. */
function part(title, lines, leftOut) {
  if (leftOut) lines.push(`and ${leftOut} more`);
  if (lines.length === 0) return [];
  return [h("h3", {}, title), h("ul", {}, ...lines.map((text) => h("li", {}, text)))];
}

function count(n, what) {
  return `${n} ${what}${n === 1 ? "" : "s"}`;
}
