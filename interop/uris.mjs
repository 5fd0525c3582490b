// What Node makes of URIs: an array of them on stdin, an array of places on stdout. A place is
// what a server would open that decodes the path of a URI and follows its dots.

import { readFileSync } from "node:fs";
import { posix } from "node:path";

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

if (process.argv[1] === import.meta.filename) {
  console.log(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(place)));
}
