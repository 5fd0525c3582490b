package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// A way is one program between a client and a server.
type way struct {
	program string // and its version
	route   string // how clients reach it, and how it reaches the server
	// target is the way to the server that argv starts, which is remote if the route
	// says so.
	target func(server []string) target
	// several says that several clients may connect.
	several bool
}

// Routes of calls.
const (
	overStdio     = "stdio → process"
	overWebSocket = "WebSocket → process"
	overHTTP      = "HTTP → process"
	toRemote      = "stdio → remote HTTP"
	httpToRemote  = "HTTP → remote HTTP"
)

var routes = []string{overStdio, overWebSocket, overHTTP, toRemote, httpToRemote}

// own returns the ways of our proxy.
func (b programs) own() []way {
	flags := []string{"--listen", "127.0.0.1:0", "--log-level", "error"}
	serve := func(server []string) []string {
		return append(append([]string{b.proxy, "serve"}, flags...), append([]string{"--"}, server...)...)
	}
	const name = "mcp-proxy, this one"
	return []way{
		{name, overStdio, func(server []string) target {
			return target{argv: append([]string{b.proxy, "stdio", "--"}, server...), open: openStdio}
		}, false},
		{name, overWebSocket, func(server []string) target {
			return target{argv: serve(server), serves: true, open: openWebSocket}
		}, true},
		{name, overHTTP, func(server []string) target {
			return target{argv: serve(server), serves: true, open: openHTTP}
		}, true},
		{name, toRemote, func(server []string) target {
			return target{argv: []string{b.proxy, "connect", "{far}"}, far: server, open: openStdio}
		}, false},
		{name, httpToRemote, func(server []string) target {
			return target{argv: append(append([]string{b.proxy, "serve"}, flags...), "--server", "far={far}"), far: server, serves: true, open: openHTTP}
		}, true},
	}
}

// A pins says which programs are beside ours, as dir (interop/compare) has them.
type pins struct{ dir string }

// peers returns the ways of all other programs.
func (p pins) peers() ([]way, error) {
	var all []way
	for _, ways := range []func() ([]way, error){p.supergateway, p.npm, p.remote, p.python, p.crate, p.sdk} {
		w, err := ways()
		if err != nil {
			return nil, err
		}
		all = append(all, w...)
	}
	return all, nil
}

// node returns the command of an npm package's script, and its name and version.
func (p pins) node(name, script string) (argv []string, version string, err error) {
	text, err := os.ReadFile(filepath.Join(p.dir, "node_modules", name, "package.json"))
	if err != nil {
		return nil, "", err
	}
	var pkg struct{ Version string }
	if err := json.Unmarshal(text, &pkg); err != nil {
		return nil, "", err
	}
	modules := filepath.Join(p.dir, "node_modules")
	return []string{filepath.Join(modules, ".bin", "node"), filepath.Join(modules, name, script)}, name + " " + pkg.Version, nil
}

func (p pins) supergateway() ([]way, error) {
	argv, name, err := p.node("supergateway", "dist/index.js")
	if err != nil {
		return nil, err
	}
	with := func(args ...string) []string { return append(append(argv[:2:2], "--logLevel", "none"), args...) }
	return []way{
		{name, overWebSocket, func(server []string) target {
			return target{
				argv: with("--stdio", strings.Join(server, " "), "--outputTransport", "ws", "--port", "{port}"),
				at:   "http://127.0.0.1:{port}/message", serves: true, open: openWebSocketAt,
			}
		}, true},
		{name, overHTTP, func(server []string) target { // it starts a server for each request
			return target{
				argv: with("--stdio", strings.Join(server, " "), "--outputTransport", "streamableHttp", "--port", "{port}"),
				at:   "http://127.0.0.1:{port}/mcp", serves: true, open: openHTTP,
			}
		}, true},
		{name + " --stateful", overHTTP, func(server []string) target {
			return target{
				argv: with("--stdio", strings.Join(server, " "), "--outputTransport", "streamableHttp", "--stateful", "--port", "{port}"),
				at:   "http://127.0.0.1:{port}/mcp", serves: true, open: openHTTP,
			}
		}, true},
		{name, toRemote, func(server []string) target {
			return target{argv: with("--streamableHttp", "{far}"), far: server, open: openStdio}
		}, false},
	}, nil
}

func (p pins) npm() ([]way, error) {
	argv, name, err := p.node("mcp-proxy", "dist/bin/mcp-proxy.mjs")
	if err != nil {
		return nil, err
	}
	return []way{{name + " (npm)", overHTTP, func(server []string) target {
		return target{
			argv: append(append(argv[:2:2], "--host", "127.0.0.1", "--port", "{port}", "--server", "stream", "--"), server...),
			at:   "http://127.0.0.1:{port}/mcp", serves: true, open: openHTTP,
		}
	}, true}}, nil
}

func (p pins) remote() ([]way, error) {
	argv, name, err := p.node("mcp-remote", "dist/proxy.js")
	if err != nil {
		return nil, err
	}
	return []way{{name, toRemote, func(server []string) target {
		return target{argv: append(argv[:2:2], "{far}", "--silent"), far: server, open: openStdio}
	}, false}}, nil
}

func (p pins) python() ([]way, error) {
	binary := filepath.Join(p.dir, ".venv-mcp-proxy", "bin", "mcp-proxy")
	name, err := version(binary)
	if err != nil {
		return nil, err
	}
	name += " (PyPI)"
	return []way{
		{name, overHTTP, func(server []string) target {
			return target{
				argv: append([]string{binary, "--port", "{port}", "--log-level", "ERROR", "--"}, server...),
				at:   "http://127.0.0.1:{port}/mcp", serves: true, open: openHTTP,
			}
		}, true},
		{name, toRemote, func(server []string) target {
			return target{argv: []string{binary, "--transport", "streamablehttp", "--log-level", "ERROR", "{far}"}, far: server, open: openStdio}
		}, false},
	}, nil
}

// crate's configuration is a file, and it names its tools after its upstreams.
func (p pins) crate() ([]way, error) {
	binary := filepath.Join(p.dir, "out", "crate", "bin", "mcp-proxy")
	pinned, err := os.ReadFile(filepath.Join(p.dir, "crate.txt"))
	if err != nil {
		return nil, err
	}
	name := strings.TrimSpace(string(pinned)) + " (crates.io)"
	through := func(backend string) target {
		return target{
			config: "[proxy]\nname = \"proxy\"\n[proxy.listen]\nhost = \"127.0.0.1\"\nport = {port}\n[observability]\nlog_level = \"error\"\n[[backends]]\nname = \"far\"\n" + backend,
			argv:   []string{binary, "--config", "{config}"},
			at:     "http://127.0.0.1:{port}/", prefix: "far/", serves: true, open: openHTTPAtRoot,
		}
	}
	return []way{
		{name, overHTTP, func(server []string) target {
			args, _ := json.Marshal(server[1:]) // strings are the same in TOML
			return through(fmt.Sprintf("transport = \"stdio\"\ncommand = %q\nargs = %s\n", server[0], args))
		}, true},
		{name, httpToRemote, func(server []string) target {
			tgt := through("transport = \"http\"\nurl = \"{far}\"\n")
			tgt.far = server
			return tgt
		}, true},
	}, nil
}

func (p pins) sdk() ([]way, error) {
	binary := filepath.Join(p.dir, "out", "gosdk")
	list, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", "github.com/modelcontextprotocol/go-sdk").Output()
	if err != nil {
		return nil, fmt.Errorf("find the Go SDK: %w", err)
	}
	name := "Go SDK " + strings.TrimPrefix(strings.TrimSpace(string(list)), "v") + ", 70 lines"
	return []way{
		{name, overStdio, func(server []string) target {
			return target{argv: append([]string{binary}, server...), open: openStdio}
		}, false},
		{name, overHTTP, func(server []string) target {
			return target{
				argv: append([]string{binary, "-http", "127.0.0.1:{port}"}, server...),
				at:   "http://127.0.0.1:{port}/mcp", serves: true, open: openHTTP,
			}
		}, true},
		{name, toRemote, func(server []string) target {
			return target{argv: []string{binary, "{far}"}, far: server, open: openStdio}
		}, false},
		{name, httpToRemote, func(server []string) target {
			return target{
				argv: []string{binary, "-http", "127.0.0.1:{port}", "{far}"}, far: server,
				at: "http://127.0.0.1:{port}/mcp", serves: true, open: openHTTP,
			}
		}, true},
	}, nil
}

var numbers = regexp.MustCompile(`\d+\.\d+\.\d+`)

// version returns the name and the version of a program that tells it.
func version(binary string) (string, error) {
	said, err := exec.Command(binary, "--version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", binary, err)
	}
	return filepath.Base(binary) + " " + numbers.FindString(string(said)), nil
}

// near starts the process that clients reach, and waits until one that is told its
// port listens there.
func (tgt target) near(s *session, env []string) (*process, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	fill := strings.NewReplacer("{port}", port, "{far}", s.far)
	path := ""
	if tgt.config != "" {
		path = filepath.Join(os.TempDir(), "bench-"+port+".toml")
		if err := os.WriteFile(path, []byte(fill.Replace(tgt.config)), 0o600); err != nil {
			return nil, err
		}
		defer os.Remove(path)
	}
	fill = strings.NewReplacer("{port}", port, "{far}", s.far, "{config}", path)
	argv := make([]string, len(tgt.argv))
	for i, arg := range tgt.argv {
		argv[i] = fill.Replace(arg)
	}
	s.started = time.Now()
	p, err := start(argv, tgt.serves, env...)
	if err != nil || tgt.at == "" {
		return p, err
	}
	return p, p.await("127.0.0.1:"+port, fill.Replace(tgt.at))
}

// await waits until something listens at addr; p is then reached at url.
func (p *process) await(addr, url string) error {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if c, err := net.Dial("tcp", addr); err == nil {
			p.urls <- url
			return c.Close()
		}
	}
	return fmt.Errorf("%s does not listen at %s", p.cmd.Args, addr)
}

// freePort returns a port that was free a moment ago.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return "", err
	}
	return port, l.Close()
}
