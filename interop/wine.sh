#!/usr/bin/env bash
# Tries the Windows binary under Wine at a terminal: it starts, a call passes, its server is
# killed and the call gets one error, the next call works, and Ctrl-C stops both.
# Needs Go, tmux, wine64 and binutils-mingw-w64-x86-64, all of which Debian has.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
export WINEPREFIX=$dir/wine WINEDEBUG=-all PATH=$PATH:/usr/lib/wine
terminal() { tmux -S "$dir/tmux" "$@"; }
trap 'terminal kill-server 2>/dev/null || true; wineserver -k || true; rm -rf "$dir"' EXIT
fail() { echo "wine: $*"; terminal capture-pane -pJ; exit 1; }
await() { # await TEXT: on the screen
  for _ in $(seq 600); do
    terminal capture-pane -pJ | grep -q "$1" && return
    sleep 0.1
  done
  fail "no $1"
}

echo "build"
go build -o "$dir/mcp-proxy" ./cmd/mcp-proxy
GOOS=windows GOARCH=amd64 CGO_ENABLED=0 go build -o "$dir/" ./cmd/mcp-proxy ./examples/servers/clock

echo "a Windows of our own"
wine64 wineboot -i >/dev/null 2>&1
system=$WINEPREFIX/drive_c/windows/system32
if [[ ! -e $system/bcryptprimitives.dll ]]; then # Go needs one function of it, which Wine 8 has elsewhere
  printf 'LIBRARY bcryptprimitives.dll\nEXPORTS\nProcessPrng = advapi32.SystemFunction036\n' >"$dir/one.def"
  x86_64-w64-mingw32-as -o "$dir/none.o" /dev/null
  x86_64-w64-mingw32-ld -shared --entry=0 -o "$system/bcryptprimitives.dll" "$dir/none.o" "$dir/one.def"
fi

echo "start"
terminal new-session -d -x 120 -y 40 -c "$dir" "wine64 mcp-proxy.exe serve --port 0 --shared -- ./clock.exe; echo exit code \$?; sleep 60"
await 'http://[0-9.:]*/mcp'
url=$(terminal capture-pane -pJ | grep -o 'http://[0-9.:]*/mcp' | head -1)
await 'ready  2 tools'
"$dir/mcp-proxy" call now --url "$url"

echo "its server is killed"
"$dir/mcp-proxy" call timer seconds=60 --url "$url" >"$dir/timer" 2>&1 &
timer=$!
for _ in $(seq 100); do
  grep -q progress "$dir/timer" && break
  sleep 0.1
done
wine64 taskkill /f /im clock.exe >/dev/null 2>&1
! wait $timer || fail "the call ended well"
grep 'Connection closed: main ' "$dir/timer" || fail "the call says $(<"$dir/timer")"
"$dir/mcp-proxy" call now --url "$url"

echo "Ctrl-C"
terminal send-keys C-c
await 'exit code'
terminal capture-pane -pJ | grep -v '^$'
terminal capture-pane -pJ | grep -q 'exit code 0' || fail "another exit code"
! wine64 tasklist 2>/dev/null | grep -i clock.exe || fail "its server is left behind"
