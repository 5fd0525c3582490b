#!/usr/bin/env bash
# Kills a server during a call through the proxy: one clear error says why, and the next call
# works. Needs only Go. The README shows its output.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
mkdir "$dir/run" "$dir/bin"
export XDG_RUNTIME_DIR=$dir/run # for the socket for operators
trap 'kill "${proxy:-}" 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
go build -o "$dir/bin/" ./cmd/mcp-proxy ./examples/servers/clock
PATH=$dir/bin:$PATH

run() {
  printf '$ %s\n' "$*"
  eval "$*" 2>&1 || printf '[exit code %s]\n' $?
}

mcp-proxy serve --port 0 --shared --server clock=clock >"$dir/said" 2>"$dir/log" &
proxy=$!
until grep -q listening "$dir/said"; do sleep 0.1; done
url=$(grep -o 'http://[^ ,]*/mcp' "$dir/said" | head -1)

run mcp-proxy call now --url '$url'
mcp-proxy call timer seconds=60 --url "$url" >"$dir/timer" 2>&1 &
timer=$!
for _ in $(seq 100); do
  mcp-proxy calls --json | grep -q '"tool": *"timer"' && break
  sleep 0.1
done
pid=$(mcp-proxy status --json | grep -o '"pid": *[0-9]*' | grep -o '[0-9]*' | tail -1)
echo '$ mcp-proxy call timer seconds=60 --url $url &'
run mcp-proxy calls
run kill -9 '$pid'
wait "$timer" || code=$?
cat "$dir/timer"
echo "[exit code $code]"
event=$(grep -o '"event":"[a-z0-9]*"' "$dir/log" | head -1 | cut -d'"' -f4)
run mcp-proxy explain '$event'
run mcp-proxy call now --url '$url'
