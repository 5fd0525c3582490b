#!/usr/bin/env bash
# The sidecar without containers: two processes on one machine, connected by a Unix socket.
# Prints the tools of the host as the proxy lists them, and ends both. Needs only Go and curl.
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
export MCP_SOCKETS=$dir MCP_SERVERS=$dir NOTES_DIR=$dir/data MCP_TOKEN_FILE=$dir/token MCP_ADMIN=unix://$dir/admin.sock MCP_DRAIN_DELAY=0s
head -c 24 /dev/urandom | base64 | tr '/+' '_-' >"$dir/token"

# Either may start first: the proxy dials until the host is ready.
: >"$dir/listening"
"$dir/mcp-proxy" serve --config examples/sidecar/app.yaml --listen 127.0.0.1:0 >"$dir/listening" 2>"$dir/proxy.log" &
proxy=$!
"$dir/mcp-proxy" host --config examples/sidecar/tools.yaml --listen "unix://$dir/tools.sock" >"$dir/host.out" 2>"$dir/host.log" &
host=$!

# Both are ready once the link is up.
for socket in tools-admin admin; do
  "$dir/mcp-proxy" healthcheck --wait 30s --admin "$dir/$socket.sock"
done
url=$(grep -oE 'http://[^ ,]*/mcp' "$dir/listening")
tools=$(examples/tools.sh "$url" "$(cat "$dir/token")")
echo "$tools"
for name in clock__now notes__add; do grep -qx "$name" <<<"$tools"; done

# SIGTERM drains; each exits with 0.
kill "$proxy"
wait "$proxy"
kill "$host"
wait "$host"
host= proxy=
