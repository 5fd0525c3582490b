#!/usr/bin/env bash
# Measures mcp-proxy beside other proxies, and writes what it finds into docs/benchmarks.md
# and docs/faults.md: interop/compare/run.sh [calls|faults]
# With "histories" it judges what clients of all of them see under random faults instead, and
# writes that into docs/reliability.md.
#
# Installs the others from their registries first, into this directory: npm packages with
# a Node of their own, a virtual environment, a crate, and a main of 70 lines on the Go SDK.
# The pins are in package-lock.json, mcp-proxy.txt, crate.txt and ../../internal/bench/go.mod.
set -euo pipefail
cd "$(dirname "$0")"

# A stamp is a copy of what was installed from; it is written last.
npm_packages() {
  cmp -s package-lock.json node_modules/.stamp && return
  npm ci --no-audit --no-fund --loglevel=error
  cp package-lock.json node_modules/.stamp
}

python_package() {
  cmp -s mcp-proxy.txt .venv-mcp-proxy/.stamp && return
  rm -rf .venv-mcp-proxy
  python3 -m venv .venv-mcp-proxy
  .venv-mcp-proxy/bin/pip install --quiet --disable-pip-version-check --requirement mcp-proxy.txt
  cp mcp-proxy.txt .venv-mcp-proxy/.stamp
}

crate() {
  cmp -s crate.txt out/crate/.stamp && return
  read -r name version <crate.txt
  cargo install --quiet --locked --root out/crate --version "$version" "$name"
  cp crate.txt out/crate/.stamp
}

npm_packages
python_package
crate
cd ../..
go -C internal/bench build -trimpath -o ../../interop/compare/out/gosdk ./gosdk
if [[ ${1:-} == histories ]]; then
  exec go -C internal/history run . -compare -peers "$PWD/interop/compare" -docs "$PWD/docs" -duration "${DURATION:-30s}" ${SEED:+-seed "$SEED"}
fi
exec go -C internal/bench run . -compare "${1:-all}" -peers "$PWD/interop/compare" -docs "$PWD/docs" -rounds "${ROUNDS:-5}" -part "${PART:-400ms}"
