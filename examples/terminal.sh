#!/usr/bin/env bash
# Shows serve at a terminal: which servers are ready and which are not, a server that is killed
# and restarts, and Ctrl-C. Needs Go and tmux. docs/operations.md shows the screen that it
# prints.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
mkdir "$dir/run" "$dir/bin"
export XDG_RUNTIME_DIR=$dir/run # for the socket for operators
terminal() { tmux -S "$dir/tmux" -f /dev/null "$@"; }
screen() { terminal capture-pane -pJ | grep -v '^$'; }
trap 'terminal kill-server 2>/dev/null || true; wait; rm -rf "$dir"' EXIT
go build -o "$dir/bin/" ./cmd/mcp-proxy ./examples/servers/clock
export PATH=$dir/bin:$PATH

await() { # a command that succeeds soon
  for _ in $(seq 600); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.1
  done
  echo "not in a minute: $*" && screen && exit 1
}
shows() { screen | grep -q "$1"; }
called() { mcp-proxy calls --json | grep -q '"tool": *"timer"'; }

cat >"$dir/mcp-proxy.yaml" <<'END'
upstreams:
  clock: {command: clock, session: shared}
  notes: {command: notse}
END
terminal new-session -d -x 110 -y 40 -c "$dir" 'mcp-proxy serve --port 0; tmux wait-for -S over; sleep 60'
await shows 'notes *failed'
await shows 'clock *ready'
url=$(screen | grep -o 'http://[0-9.:]*/mcp')
mcp-proxy call clock__timer seconds=60 --url "$url" >"$dir/timer" 2>&1 &
await called
kill -9 "$(mcp-proxy status --json | grep -o '"pid": *[0-9]*' | grep -o '[0-9]*' | tail -1)"
wait $! || true # its error
mcp-proxy call clock__now --url "$url" >"$dir/now"
await shows 'ready again'
terminal send-keys C-c
terminal wait-for over
screen
