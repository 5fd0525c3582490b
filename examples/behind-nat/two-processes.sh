#!/usr/bin/env bash
# A host that connects to its proxy at /link, as two processes on one machine. Prints the
# host's tools as the proxy lists them, and ends both. Needs only Go and curl.
set -euo pipefail
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
host= proxy=
end() {
  status=$?
  kill $host $proxy 2>/dev/null || true # if they still run
  wait
  [[ $status -eq 0 ]] || cat "$dir"/*.log >&2
  rm -rf "$dir"
  exit $status
}
trap end EXIT

go build -o "$dir/" ./cmd/mcp-proxy ./examples/servers/clock ./examples/servers/notes
export MCP_SERVERS=$dir NOTES_DIR=$dir/data MCP_TOKEN_FILE=$dir/clients MCP_LINK_TOKEN_FILE=$dir/home
for name in clients home; do head -c 24 /dev/urandom | base64 | tr '/+' '_-' >"$dir/$name"; done

: >"$dir/listening"
"$dir/mcp-proxy" serve --config examples/behind-nat/proxy.yaml --listen 127.0.0.1:0 >"$dir/listening" 2>"$dir/proxy.log" &
proxy=$!
for _ in {1..100}; do grep -q listening "$dir/listening" && break; sleep 0.1; done
url=$(grep -oE 'http://[^ ,]*/mcp' "$dir/listening")

link=ws${url#http}
"$dir/mcp-proxy" host --config examples/behind-nat/home.yaml --dial "${link%/mcp}/link" --token-file "$dir/home" >"$dir/host.out" 2>"$dir/host.log" &
host=$!
for _ in {1..100}; do
  tools=$(examples/tools.sh "$url" "$(cat "$dir/clients")") && grep -q notes__add <<<"$tools" && break
  sleep 0.1 # the link is not up yet
done
echo "$tools"
for name in clock__now notes__add; do grep -qx "$name" <<<"$tools"; done

# SIGTERM drains; each exits with 0.
kill "$proxy"
wait "$proxy"
kill "$host"
wait "$host"
host= proxy=
