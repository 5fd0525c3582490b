package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A way is a proxy in the smaller world: how clients reach it, and how it reaches the one server.
type way struct {
	program string // and its version
	path    string // one of paths
	ours    bool

	// one says that all clients have one process of the server; else each has its own, or each request.
	one bool

	// argv and config may have {port}, {far} for the URL of the remote server, and {config} for the file with config.
	argv   func(server []string) []string
	config func(server []string) string // nil for none
	toml   bool                         // config is TOML, not YAML
	at     string                       // the URL for clients; "" on stdio
	prefix string                       // of its tools' names

	lacks []string // what it does not pass on, of features
}

// The paths between clients and the server.
const (
	overStdio     = "stdio → process"
	overWebSocket = "WebSocket → process"
	overHTTP      = "HTTP → process"
	toRemote      = "stdio → remote HTTP"
	httpToRemote  = "HTTP → remote HTTP"
)

var paths = []string{overStdio, overWebSocket, overHTTP, toRemote, httpToRemote}

func (y *way) remote() bool { return strings.HasSuffix(y.path, "remote HTTP") }
func (y *way) serves() bool { return y.at != "" }
func (y *way) name() string { return y.path + ", " + y.program }

// server is the name of the server, by which the judge knows what may be expected of it.
func (y *way) server() string {
	switch {
	case y.remote():
		return "remote"
	case y.one:
		return "common"
	}
	return "own"
}

const (
	atMCP       = "http://127.0.0.1:{port}/mcp"
	atWebSocket = "ws://127.0.0.1:{port}/ws"
)

// ownWays are those of this tree's proxy. It logs all, since an event of a server that ends again and again may be in a
// line for debugging.
func ownWays(binary string) []way {
	const name = "mcp-proxy, this one"
	ours := func(argv ...string) []string {
		return append([]string{binary, argv[0], "--log-level", "debug"}, argv[1:]...)
	}
	serve := func(more ...string) func([]string) []string {
		return func(server []string) []string {
			return slices.Concat(ours("serve", "--listen", "127.0.0.1:{port}"), more, server)
		}
	}
	configured := func([]string) []string { return ours("serve", "--config", "{config}") }
	shared := func(server []string) string {
		return fmt.Sprintf("listen: [\"127.0.0.1:{port}\"]\nupstreams:\n  main: {command: %q, args: %s, session: shared}\n", server[0], list(server[1:]))
	}
	return []way{
		{program: name, path: overStdio, ours: true, argv: func(server []string) []string {
			return append(ours("stdio", "--"), server...)
		}},
		{program: name, path: overWebSocket, ours: true, argv: serve("--"), at: atWebSocket},
		{program: name + ", session: shared", path: overWebSocket, ours: true, one: true, argv: configured, config: shared, at: atWebSocket},
		{program: name, path: overHTTP, ours: true, argv: serve("--"), at: atMCP},
		{program: name + ", session: shared", path: overHTTP, ours: true, one: true, argv: configured, config: shared, at: atMCP},
		{program: name, path: toRemote, ours: true, argv: func([]string) []string { return ours("connect", "{far}") }},
		{program: name, path: httpToRemote, ours: true, argv: func([]string) []string {
			return ours("serve", "--listen", "127.0.0.1:{port}", "--server", "far={far}")
		}, at: atMCP},
	}
}

// list writes arguments as a list of JSON, which YAML and TOML have, too.
func list(args []string) string {
	text, _ := json.Marshal(args) // strings have one
	return string(text)
}

// peerWays are those of the other proxies that interop/compare/run.sh has installed in a directory, and the names of
// those that are not there. They run as docs/faults.md has them: with default settings and quiet logs.
func peerWays(dir string) (all []way, missing []string) {
	for _, p := range []struct {
		name, binary string
		ways         func(name, dir string) []way
	}{
		{"supergateway", "node_modules/supergateway/dist/index.js", supergateway},
		{"mcp-proxy (npm)", "node_modules/mcp-proxy/dist/bin/mcp-proxy.mjs", npmProxy},
		{"mcp-remote", "node_modules/mcp-remote/dist/proxy.js", mcpRemote},
		{"mcp-proxy (PyPI)", ".venv-mcp-proxy/bin/mcp-proxy", pythonProxy},
		{"mcp-proxy (crates.io)", "out/crate/bin/mcp-proxy", crate},
		{"Go SDK, 70 lines", "out/gosdk", goSDK},
	} {
		if _, err := os.Stat(filepath.Join(dir, p.binary)); err != nil {
			missing = append(missing, p.name)
			continue
		}
		all = append(all, p.ways(filepath.Join(dir, p.binary), dir)...)
	}
	return all, missing
}

// node returns the command of an npm package's script, and its name and version.
func node(script, dir, name string) (argv []string, program string) {
	return []string{filepath.Join(dir, "node_modules", ".bin", "node"), script},
		name + " " + pinned(filepath.Join(dir, "node_modules", name, "package.json"), `"version": "([^"]+)`)
}

// pinned returns what a file says of a version; "" if it does not.
func pinned(file, expression string) string {
	text, _ := os.ReadFile(file)
	if found := regexp.MustCompile(expression).FindSubmatch(text); found != nil {
		return string(found[1])
	}
	return ""
}

// supergateway has one server for all clients over WebSocket, one for each request over HTTP, and one for each session
// with --stateful. It forwards each message to the server, but no question from a remote server.
func supergateway(script, dir string) []way {
	argv, name := node(script, dir, "supergateway")
	with := func(args ...string) []string { return slices.Concat(argv, []string{"--logLevel", "none"}, args) }
	local := func(more ...string) func([]string) []string {
		return func(server []string) []string {
			return with(append([]string{"--stdio", strings.Join(server, " "), "--port", "{port}", "--outputTransport"}, more...)...)
		}
	}
	return []way{
		{program: name, path: overWebSocket, one: true, argv: local("ws"), at: "ws://127.0.0.1:{port}/message"},
		{program: name, path: overHTTP, argv: local("streamableHttp"), at: atMCP},
		{program: name + " --stateful", path: overHTTP, argv: local("streamableHttp", "--stateful"), at: atMCP},
		{program: name, path: toRemote, argv: func([]string) []string { return with("--streamableHttp", "{far}") }},
	}
}

// npmProxy is a client of the one server, and a server of its clients.
func npmProxy(script, dir string) []way {
	argv, name := node(script, dir, "mcp-proxy")
	return []way{{program: name + " (npm)", path: overHTTP, one: true, argv: func(server []string) []string {
		return slices.Concat(argv, []string{"--host", "127.0.0.1", "--port", "{port}", "--server", "stream", "--"}, server)
	}, at: atMCP}}
}

// mcpRemote has a client on stdio alone. It forwards each message.
func mcpRemote(script, dir string) []way {
	argv, name := node(script, dir, "mcp-remote")
	return []way{{program: name, path: toRemote, argv: func([]string) []string {
		return slices.Concat(argv, []string{"{far}", "--silent"})
	}}}
}

// pythonProxy is a client of the server by the Python SDK, and a server of its clients, without what servers ask clients.
func pythonProxy(binary, dir string) []way {
	name := "mcp-proxy " + pinned(filepath.Join(dir, "mcp-proxy.txt"), `mcp-proxy==(\S+)`) + " (PyPI)"
	return []way{
		{program: name, path: overHTTP, one: true, argv: func(server []string) []string {
			return append([]string{binary, "--port", "{port}", "--log-level", "ERROR", "--"}, server...)
		}, at: atMCP},
		{program: name, path: toRemote, argv: func([]string) []string {
			return []string{binary, "--transport", "streamablehttp", "--log-level", "ERROR", "{far}"}
		}},
	}
}

// crate is configured by a file, and names its tools after its upstreams.
func crate(binary, dir string) []way {
	name := pinned(filepath.Join(dir, "crate.txt"), `(\S+ \S+)`) + " (crates.io)"
	argv := func([]string) []string { return []string{binary, "--config", "{config}"} }
	const front = "[proxy]\nname = \"proxy\"\n[proxy.listen]\nhost = \"127.0.0.1\"\nport = {port}\n[observability]\nlog_level = \"error\"\n[[backends]]\nname = \"far\"\n"
	return []way{
		{program: name, path: overHTTP, one: true, argv: argv, config: func(server []string) string {
			return front + fmt.Sprintf("transport = \"stdio\"\ncommand = %q\nargs = %s\n", server[0], list(server[1:]))
		}, toml: true, at: "http://127.0.0.1:{port}/", prefix: "far/"},
		{program: name, path: httpToRemote, argv: argv, config: func([]string) string {
			return front + "transport = \"http\"\nurl = \"{far}\"\n"
		}, toml: true, at: "http://127.0.0.1:{port}/", prefix: "far/"},
	}
}

// goSDK is internal/bench/gosdk, which has tools and nothing else.
func goSDK(binary, dir string) []way {
	name := "Go SDK " + pinned(filepath.Join(dir, "../../internal/bench/go.mod"), `modelcontextprotocol/go-sdk v(\S+)`) + ", 70 lines"
	return []way{
		{program: name, path: overStdio, argv: func(server []string) []string { return append([]string{binary}, server...) }},
		{program: name, path: overHTTP, argv: func(server []string) []string {
			return append([]string{binary, "-http", "127.0.0.1:{port}"}, server...)
		}, at: atMCP},
		{program: name, path: toRemote, argv: func([]string) []string { return []string{binary, "{far}"} }},
		{program: name, path: httpToRemote, argv: func([]string) []string {
			return []string{binary, "-http", "127.0.0.1:{port}", "{far}"}
		}, at: atMCP},
	}
}
