package config

import (
	"fmt"
	"strings"
	"testing"
)

// Rules about all links of a configuration. Mistakes of single keys are in
// testdata/mistakes/links.yaml.
func TestLinksTogether(t *testing.T) {
	t.Setenv("MCP_PROXY_TOKEN_FILE", "/run/token")
	file := write(t, "mcp-proxy.yaml", `links: {back: {accept: true, tokenFile: /run//token}}`)
	want := "mcp-proxy.yaml: links.back.tokenFile: is also the token file of clients: a client could pass for a host\n"
	if got := problems(t, Options{File: file}); got != want {
		t.Errorf("got %s", got)
	}

	file = write(t, "mcp-proxy.yaml", `{upstreams: {a: {command: x}}, links: {l: {dial: "unix:///a"}}}`)
	want = "mcp-proxy.yaml: links: are only valid for a proxy: a host serves its own upstreams\n"
	if got := problems(t, Options{File: file, Host: true}); got != want {
		t.Errorf("a host with links: %s", got)
	}
}

// Several hosts that dial us without a list of names are a warning.
func TestLinksOfAnyName(t *testing.T) {
	for text, want := range map[string]int{
		`a: {accept: true, tokenFile: /a}, b: {accept: true, tokenFile: /b}`:                                   1,
		`a: {accept: true, tokenFile: /a}, b: {accept: true, tokenFile: /b}, c: {accept: true, tokenFile: /c}`: 1,
		`a: {accept: true, tokenFile: /a, upstreams: [x, "y_*"]}, b: {accept: true, tokenFile: /b}`:            0,
		`a: {accept: true, tokenFile: /a}, b: {dial: "unix:///b"}`:                                             0,
		`a: {accept: true, tokenFile: /a, upstreams: ["*"]}, b: {accept: true, tokenFile: /b, upstreams: [x]}`: 0,
	} {
		c, warnings, err := Load(Options{File: write(t, "mcp-proxy.yaml", "links: {"+text+"}")})
		if err != nil || len(warnings) != want {
			t.Errorf("%s: %q, %v", text, warnings, err)
		}
		if strings.Contains(text, "upstreams") && len(c.Links[0].Upstreams) == 0 {
			t.Errorf("%s: %+v", text, c.Links)
		}
	}
	for _, bad := range []string{`[]`, `["["]`, `x: y`} {
		if _, _, err := Load(Options{File: write(t, "mcp-proxy.yaml", `links: {a: {dial: "unix:///a", upstreams: `+bad+`}}`)}); err == nil {
			t.Errorf("upstreams: %s is taken", bad)
		}
	}
}

// The rules for the addresses of serve do not apply to a host.
func TestHostNeedsNoAddress(t *testing.T) {
	file := write(t, "mcp-proxy.yaml", `{listen: ["0.0.0.0:80"], upstreams: {a: {command: x}}}`)
	if _, _, err := Load(Options{File: file, Host: true}); err != nil {
		t.Error(err)
	}
	file = write(t, "mcp-proxy.yaml", `{listen: [], upstreams: {}}`)
	if got := problems(t, Options{File: file, Host: true}); got != "mcp-proxy.yaml: upstreams: none is configured (disabled ones do not count)\n" {
		t.Errorf("nothing to offer: %s", got)
	}
}

func TestEndpoints(t *testing.T) {
	for in, want := range map[string]struct{ remote, exposed bool }{
		"unix:///run/a":         {},
		"tcp://localhost:1":     {},
		"ws://127.0.0.1/link":   {},
		"http://[::1]:8080/mcp": {},
		"tls://127.0.0.1:1":     {},
		"tcp://:1":              {true, true},
		"ws://0.0.0.0:1":        {true, true},
		"http://localhost.io/":  {true, true},
		"tls://10.0.0.1:1":      {true, false},
		"wss://a/link":          {true, false},
		"https://a/mcp":         {true, false},
	} {
		if e := parseEndpoint(in); e.remote() != want.remote || e.exposed() != want.exposed {
			t.Errorf("%s: remote %v, exposed %v", in, e.remote(), e.exposed())
		}
	}
}

// TestLongSocketPaths: a path that no socket can have is a mistake, wherever it is given.
func TestLongSocketPaths(t *testing.T) {
	in := func(text string) error {
		_, _, err := Load(Options{File: write(t, "mcp-proxy.yaml", "upstreams: {a: {command: x}}\n"+text)})
		return err
	}
	longest := "unix:///" + strings.Repeat("a", maxSocketPath-1)
	for key, load := range map[string]func(address string) error{
		"mcp-proxy.yaml: listen":       func(a string) error { return in("listen: [" + a + "]\n") },
		"mcp-proxy.yaml: admin.listen": func(a string) error { return in("admin: {listen: [" + a + "]}\n") },
		"mcp-proxy.yaml: links.l.dial": func(a string) error { return in("links: {l: {dial: " + a + "}}\n") },
		"--listen": func(a string) error {
			_, _, err := Load(Options{Command: []string{"x"}, Listen: []string{a}})
			return err
		},
		"--listen: ": func(a string) error { return HostLink{Listen: a}.Check() },
		"--dial":     func(a string) error { return HostLink{Dial: a}.Check() },
	} {
		if err := load(longest); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		want := fmt.Sprintf("%s: the path of a socket may have %d bytes", strings.TrimSuffix(key, ": "), maxSocketPath)
		if err := load(longest + "a"); err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", key, err, want)
		}
	}
}
