// uris.json says what three parsers make of legitimate and hostile URIs. The tests of
// proxy/policy hold it against rules; here it is held against the parsers, which change.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { here } from "./proxy.mjs";
import { place } from "./uris.mjs";

const rows = JSON.parse(readFileSync(here("uris.json"), "utf8"));
const uris = rows.map((row) => row.uri);
const python = () => JSON.parse(execFileSync("python3", [here("python/uris.py")], { input: JSON.stringify(uris) }));

for (const [parser, places] of [["node", () => uris.map(place)], ["python", python]]) {
  test(`${parser} makes of URIs what the table says`, (t) => {
    for (const [i, now] of places().entries()) {
      const { uri, is, [parser]: then } = rows[i];
      if (is === "legitimate") assert.equal(now, then, uri);
      else if (now !== then) t.diagnostic(`${JSON.stringify(uri)} was ${then} and is ${now}`); // it is refused all the same
    }
  });
}
