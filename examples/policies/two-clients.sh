#!/usr/bin/env bash
# Two clients of one proxy with different permissions: prints the tools of each, and the error
# for a client without a token. Needs only Go and curl.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
proxy=
end() {
  status=$?
  kill $proxy 2>/dev/null || true # if it still runs
  wait
  [[ $status -eq 0 ]] || cat "$dir"/*.log >&2
  rm -rf "$dir"
  exit $status
}
trap end EXIT

go build -o "$dir/" ./cmd/mcp-proxy ./examples/servers/clock ./examples/servers/notes
export MCP_SERVERS=$dir NOTES_DIR=$dir/data MCP_TOKENS=$dir
for name in writer reader; do head -c 24 /dev/urandom | base64 | tr '/+' '_-' >"$dir/$name"; done
"$dir/mcp-proxy" check examples/policies/tokens.yaml

: >"$dir/listening"
"$dir/mcp-proxy" serve --config examples/policies/tokens.yaml --listen 127.0.0.1:0 >"$dir/listening" 2>"$dir/proxy.log" &
proxy=$!
for _ in {1..100}; do grep -q listening "$dir/listening" && break; sleep 0.1; done
url=$(grep -oE 'http://[^ ,]*/mcp' "$dir/listening")

writer=$(examples/tools.sh "$url" "$(cat "$dir/writer")")
reader=$(examples/tools.sh "$url" "$(cat "$dir/reader")")
echo "writer:" $writer
echo "reader:" $reader
[[ $(echo $writer) == "clock__now clock__timer notes__add notes__find" ]]
[[ $(echo $reader) == "clock__now clock__timer notes__find" ]]
if nobody=$(examples/tools.sh "$url" 2>&1); then exit 1; fi
echo "nobody:" "$nobody"
grep -q 401 <<<"$nobody"

# A denied tool looks like an unknown one.
call='{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"NAME","arguments":{"title":"a","text":"b"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}'
for name in notes__add notes__nothing; do
  answer=$(curl -sS "$url" -H "Authorization: Bearer $(cat "$dir/reader")" -H 'Content-Type: application/json' -H 'Accept: application/json, text/event-stream' \
    -H 'MCP-Protocol-Version: 2026-07-28' -H 'Mcp-Method: tools/call' -H "Mcp-Name: $name" -d "${call/NAME/$name}")
  echo "reader, $name:" "$answer"
  grep -q '"code":-32602' <<<"$answer"
done

kill "$proxy"
wait "$proxy"
proxy=
