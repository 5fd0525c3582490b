#!/usr/bin/env bash
# Lists the tools of an MCP server over Streamable HTTP, with only curl, one name on each
# line: tools.sh URL [TOKEN]
set -euo pipefail
url=$1 token=${2:-} session=
headers=$(mktemp)
trap 'rm -f "$headers"' EXIT

post() {
  curl -sS --fail-with-body --max-time 30 -D "$headers" "$url" \
    -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \
    ${token:+-H "Authorization: Bearer $token"} ${session:+-H "Mcp-Session-Id: $session"} -d "$1"
}

post '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"tools.sh","version":"1"}}}' >/dev/null
session=$(tr -d '\r' <"$headers" | sed -n 's/^[Mm]cp-[Ss]ession-[Ii]d: //p')
post '{"jsonrpc":"2.0","method":"notifications/initialized"}' >/dev/null
tools=$(post '{"jsonrpc":"2.0","id":2,"method":"tools/list"}')
curl -sS -X DELETE "$url" -H "Mcp-Session-Id: $session" ${token:+-H "Authorization: Bearer $token"} >/dev/null

# The answer is JSON, or an event with JSON data. The pattern is good enough for an example.
grep -oE '"name": ?"[A-Za-z0-9_.-]+"' <<<"$tools" | cut -d'"' -f4 | sort -u
