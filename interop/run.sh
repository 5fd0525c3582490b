#!/usr/bin/env bash
# Tests mcp-proxy against real peers: interop/run.sh [conformance|eras|clients|closing|leaving|identity|login|page|uris|skills]…
#
# Installs what is missing (npm packages, a Node of their own, one virtual
# environment for each release of python-sdk and fastmcp), builds the proxy, and
# runs the named parts, or all. MCP_PROXY names another binary to test.
set -euo pipefail
cd "$(dirname "$0")"

# A stamp is a copy of what was installed from; it is written last.
npm_packages() {
  cmp -s package-lock.json node_modules/.stamp && return
  npm ci --no-audit --no-fund --loglevel=error
  cp package-lock.json node_modules/.stamp
}

python_release() {
  local list=$1 venv
  venv=.venv-$(basename "$list" .txt | sed 's/^mcp-//')
  cmp -s "$list" "$venv/.stamp" && return
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$list"
  cp "$list" "$venv/.stamp"
}

programs() {
  mkdir -p out
  [[ -n ${MCP_PROXY:-} ]] || (cd .. && go build -o interop/out/mcp-proxy ./cmd/mcp-proxy)
  local sdk=github.com/modelcontextprotocol/go-sdk/conformance
  (cd .. && go build -o interop/out/ ./examples/servers/fixture/... $sdk/everything-server $sdk/everything-client)
  GOBIN=$PWD/out go install github.com/mark3labs/mcp-go/examples/everything@v1.2.1
}

# The pages are shown by a real browser, that of the distribution. CHROMIUM names another.
browser() {
  [[ -n ${CHROMIUM:-} || -x /usr/bin/chromium || -x /usr/bin/google-chrome ]] && return
  local root=()
  [[ $(id -u) == 0 ]] || root=(sudo)
  "${root[@]}" apt-get update -qq
  DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null
}

npm_packages
for list in python/*.txt; do python_release "$list"; done
programs

parts=("$@")
[[ ${#parts[@]} -gt 0 ]] || parts=(conformance eras clients closing leaving identity login page uris skills)
[[ " ${parts[*]} " != *" page "* ]] || browser
exec node_modules/.bin/node --test --test-concurrency=2 --test-timeout=900000 --test-reporter=spec "${parts[@]/%/.test.mjs}"
