package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The command lines of ways, with ports and files filled in.
func TestWays(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"node_modules/supergateway/dist/index.js":       "",
		"node_modules/supergateway/package.json":        `{"name": "supergateway", "version": "4.0.0"}`,
		"node_modules/mcp-proxy/dist/bin/mcp-proxy.mjs": "",
		"node_modules/mcp-proxy/package.json":           `{"version": "6.7.19"}`,
		"node_modules/mcp-remote/dist/proxy.js":         "",
		"node_modules/mcp-remote/package.json":          `{"version": "0.15.1"}`,
		".venv-mcp-proxy/bin/mcp-proxy":                 "",
		"mcp-proxy.txt":                                 "mcp==1.30.0\nmcp-proxy==0.13.0\n",
		"out/crate/bin/mcp-proxy":                       "",
		"crate.txt":                                     "mcp-proxy 0.6.0\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	peers, missing := peerWays(dir)
	if !slices.Equal(missing, []string{"Go SDK, 70 lines"}) {
		t.Errorf("missing %v", missing)
	}
	const server = "/self server -name %s -journal /d/journal"
	want := map[string]string{
		"stdio → process, mcp-proxy, this one":                      "ours stdio --log-level debug -- " + server,
		"WebSocket → process, mcp-proxy, this one":                  "ours serve --log-level debug --listen 127.0.0.1:20000 -- " + server,
		"WebSocket → process, mcp-proxy, this one, session: shared": "ours serve --log-level debug --config /d/config.yaml",
		"HTTP → process, mcp-proxy, this one":                       "ours serve --log-level debug --listen 127.0.0.1:20000 -- " + server,
		"HTTP → process, mcp-proxy, this one, session: shared":      "ours serve --log-level debug --config /d/config.yaml",
		"stdio → remote HTTP, mcp-proxy, this one":                  "ours connect --log-level debug http://127.0.0.1:20001/mcp",
		"HTTP → remote HTTP, mcp-proxy, this one":                   "ours serve --log-level debug --listen 127.0.0.1:20000 --server far=http://127.0.0.1:20001/mcp",
		"WebSocket → process, supergateway 4.0.0":                   "NODE node_modules/supergateway/dist/index.js --logLevel none --stdio " + server + " --port 20000 --outputTransport ws",
		"HTTP → process, supergateway 4.0.0":                        "NODE node_modules/supergateway/dist/index.js --logLevel none --stdio " + server + " --port 20000 --outputTransport streamableHttp",
		"HTTP → process, supergateway 4.0.0 --stateful":             "NODE node_modules/supergateway/dist/index.js --logLevel none --stdio " + server + " --port 20000 --outputTransport streamableHttp --stateful",
		"stdio → remote HTTP, supergateway 4.0.0":                   "NODE node_modules/supergateway/dist/index.js --logLevel none --streamableHttp http://127.0.0.1:20001/mcp",
		"HTTP → process, mcp-proxy 6.7.19 (npm)":                    "NODE node_modules/mcp-proxy/dist/bin/mcp-proxy.mjs --host 127.0.0.1 --port 20000 --server stream -- " + server,
		"stdio → remote HTTP, mcp-remote 0.15.1":                    "NODE node_modules/mcp-remote/dist/proxy.js http://127.0.0.1:20001/mcp --silent",
		"HTTP → process, mcp-proxy 0.13.0 (PyPI)":                   ".venv-mcp-proxy/bin/mcp-proxy --port 20000 --log-level ERROR -- " + server,
		"stdio → remote HTTP, mcp-proxy 0.13.0 (PyPI)":              ".venv-mcp-proxy/bin/mcp-proxy --transport streamablehttp --log-level ERROR http://127.0.0.1:20001/mcp",
		"HTTP → process, mcp-proxy 0.6.0 (crates.io)":               "out/crate/bin/mcp-proxy --config /d/config.toml",
		"HTTP → remote HTTP, mcp-proxy 0.6.0 (crates.io)":           "out/crate/bin/mcp-proxy --config /d/config.toml",
	}
	for _, y := range append(ownWays("ours"), peers...) {
		w := &world{dir: "/d", self: "/self", way: &y, address: "127.0.0.1:20000", links: map[string]*network{"remote": {address: "127.0.0.1:20001"}}}
		got := strings.NewReplacer(dir+"/node_modules/.bin/node", "NODE", dir+"/", "").Replace(strings.Join(w.wayArgv(), " "))
		if expected := strings.ReplaceAll(want[y.name()], "%s", y.server()); got != expected {
			t.Errorf("%s:\n%s, want\n%s", y.name(), got, expected)
		}
		delete(want, y.name())
	}
	for name := range want {
		t.Errorf("there is no %s", name)
	}
}

// A configuration names the server's command.
func TestWayConfigurations(t *testing.T) {
	server := []string{"/self", "server", "-name", "common"}
	for _, tt := range []struct {
		way  way
		want string
	}{
		{ownWays("ours")[2], "  main: {command: \"/self\", args: [\"server\",\"-name\",\"common\"], session: shared}\n"},
		{crate("crate", ".")[0], "command = \"/self\"\nargs = [\"server\",\"-name\",\"common\"]\n"},
		{crate("crate", ".")[1], "url = \"{far}\"\n"},
	} {
		if got := tt.way.config(server); !strings.HasSuffix(got, tt.want) {
			t.Errorf("%s: %s", tt.way.name(), got)
		}
	}
}
