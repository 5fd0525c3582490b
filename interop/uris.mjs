// What Node makes of URIs: an array of them on stdin, an array of places on stdout. A place is
// what a server would open that decodes the path of a URI and follows its dots. With "serve"
// it is a server over stdio whose resources are the names of their places.

import { readFileSync } from "node:fs";
import { posix } from "node:path";
import { createInterface } from "node:readline";

export function place(uri) {
  let url;
  try {
    url = new URL(uri);
  } catch {
    return "error";
  }
  let path = url.pathname;
  try {
    path = decodeURIComponent(path);
  } catch {
    // a server that forgives
  }
  const slashes = url.href.startsWith(url.protocol + "//") || path.startsWith("/") ? "//" : "";
  return url.protocol + slashes + url.host + (path === "" ? "" : posix.normalize(path));
}

const answers = {
  initialize: () => ({ protocolVersion: "2025-11-25", capabilities: { resources: {} }, serverInfo: { name: "uris", version: "1" } }),
  "resources/read": ({ uri }) => ({ contents: [{ uri, text: place(uri) }] }),
};

function serve() {
  createInterface({ input: process.stdin }).on("line", (line) => {
    const { id, method, params } = JSON.parse(line);
    if (id !== undefined) console.log(JSON.stringify({ jsonrpc: "2.0", id, result: answers[method]?.(params) ?? {} }));
  });
}

if (process.argv[2] === "serve") {
  serve();
} else if (process.argv[1] === import.meta.filename) {
  console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(place)));
}
