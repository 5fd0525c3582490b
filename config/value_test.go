package config

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

func TestExpand(t *testing.T) {
	t.Setenv("CONFIG_TEST_A", "a${CONFIG_TEST_B}")
	t.Setenv("CONFIG_TEST_EMPTY", "")
	for in, want := range map[string]string{
		"":                             "",
		"plain $ $$ $HOME {}":          "plain $ $$ $HOME {}",
		"<${CONFIG_TEST_A}>":           "<a${CONFIG_TEST_B}>",
		"${CONFIG_TEST_EMPTY}":         "",
		"${CONFIG_TEST_EMPTY:-x}":      "x",
		"${CONFIG_TEST_UNSET:-}":       "",
		"${CONFIG_TEST_UNSET:-a:-b c}": "a:-b c",
		"${CONFIG_TEST_A:-x}":          "a${CONFIG_TEST_B}",
		"$${CONFIG_TEST_A}":            "${CONFIG_TEST_A}",
		"$$${CONFIG_TEST_A}":           "$${CONFIG_TEST_A}",
		"$${${CONFIG_TEST_A}":          "${a${CONFIG_TEST_B}",
	} {
		if got, wrong := new(reader).expand(in); got != want || wrong != nil {
			t.Errorf("new(reader).expand(%q) = %q, %q; want %q", in, got, wrong, want)
		}
	}
	for in, want := range map[string]string{
		"${CONFIG_TEST_UNSET}": "the variable CONFIG_TEST_UNSET is not set",
		"${":                   "without its }",
		"${}":                  "neither",
		"${env:1}":             "neither",
		"${1A}":                "neither",
		"${CONFIG_TEST_A-x}":   "neither",
	} {
		if _, wrong := new(reader).expand(in); len(wrong) != 1 || !strings.Contains(wrong[0], want) {
			t.Errorf("new(reader).expand(%q): %q; want one with %q", in, wrong, want)
		}
	}
}

// The value of a variable gets the type of its key.
func TestVariablesAreTyped(t *testing.T) {
	t.Setenv("CONFIG_TEST_N", "5")
	t.Setenv("CONFIG_TEST_T", "true")
	c := load(t, `
insecure: "${CONFIG_TEST_T}"
drain: ${CONFIG_TEST_N}s
limits: {message: "${CONFIG_TEST_N}KiB", depth: "${CONFIG_TEST_N}"}
upstreams: {a: {command: x}}
`)
	if c.Limits.Depth != 5 || !c.Insecure || c.Drain.Seconds() != 5 || c.Limits.Message != 5<<10 {
		t.Errorf("got %+v", c)
	}
}

func TestSizes(t *testing.T) {
	for in, want := range map[string]int64{
		"1": 1, "16B": 16, "16MiB": 16 << 20, "16 MiB": 16 << 20, "16MB": 16e6, "16M": 16e6,
		"1.5KiB": 1536, "1GiB": 1 << 30,
		"0": 0, "0.1": 0, "2GiB": 0, "-1": 0, "": 0, "MiB": 0, "1e3": 0, "16TiB": 0, "16mib": 0, "16Mi": 0, "NaN": 0, "1.MiB": 0,
		strings.Repeat("9", 400): 0,
	} {
		if got, ok := parseSize(in); ok != (want > 0) || ok && got != want {
			t.Errorf("parseSize(%q) = %d, %v; want %d", in, got, ok, want)
		}
	}
}

func TestAddresses(t *testing.T) {
	for in, want := range map[string]struct{ valid, local bool }{
		"127.0.0.1:0":          {true, true},
		"127.9.9.9:65535":      {true, true},
		"[::1]:80":             {true, true},
		"[::ffff:127.0.0.1]:1": {true, true},
		"LocalHost:80":         {true, true},
		"unix:///run/a.sock":   {true, true},
		"[::]:80":              {true, false},
		":80":                  {true, false},
		"10.0.0.1:80":          {true, false},
		"localhost.evil.io:80": {true, false},
		"127.0.0.1.nip.io:80":  {true, false},
		"localhost":            {},
		"127.0.0.1:65536":      {},
		"127.0.0.1:http":       {},
		"127.0.0.1:-1":         {},
		"::1:80":               {},
		"a b:80":               {},
		"unix://run/a":         {},
		"unix:///":             {},
		"http://localhost:80":  {},
		"":                     {},
	} {
		if got := isAddress(in); got != want.valid {
			t.Errorf("isAddress(%q) = %v", in, got)
		}
		if got := isAddress(in) && isLocal(in); got != want.local {
			t.Errorf("isLocal(%q) = %v", in, got)
		}
	}
}

func TestURLsHostsOrigins(t *testing.T) {
	remote, dial := isURL("http", "https"), isURL(linkSchemes...)
	for _, c := range []struct {
		valid func(string) bool
		good  string
		bad   string
	}{
		{remote, "https://a http://a:1/x?y https://[::1]/", "a https:// https:///x ftp://a https://:80 http://%zz"},
		{dial, "unix:///a tcp://a:1 tls://[::1]:1 ws://a/link wss://a:1", "unix://a unix:/// unix:a unix:///%00 tcp:///a tcp://a tcp://:1 tcp://a:1/b tcp://u@a:1 ws://u:p@a/ http://a"},
		{isListenURL, "unix:///a tcp://:1 tls://[::]:0 ws://a:1/link wss://0.0.0.0:1", "unix://a tcp://a ws://a/ wss://:x http://a:1 ws://u@a:1"},
		{isURI, "file:///data git+ssh://a/b urn:a", "/data data file://%zz"},
		{isAllowedHost, "* a a.example:80 10.0.0.1 [::1] ::1 [::1]:80", "http://a a/b a:b :80 a,b *.a"},
		{isOrigin, "* https://a http://a:1 vscode-webview://x", "a null https://a/ https://a?b https:// https://u@a/x"},
		{isGlob, "* a? [a-z]* a/b {x}", "[ [] \\"},
		{tree.IsName, "a A-b_c 0 12345678901234567890123456789012", "a__b a.b é 123456789012345678901234567890123"},
	} {
		for s := range strings.FieldsSeq(c.good) {
			if !c.valid(s) {
				t.Errorf("%q is refused", s)
			}
		}
		for s := range strings.FieldsSeq(c.bad + " ") {
			if c.valid(s) {
				t.Errorf("%q is accepted", s)
			}
		}
		if c.valid("") {
			t.Error("nothing is accepted")
		}
	}
}

func TestAliases(t *testing.T) {
	c := load(t, `
upstreams:
  a: &base
    command: one
    env: &env {A: "1"}
    tools: {deny: [x]}
  b:
    <<: *base
    command: two
    env: {<<: [*env], B: "2"}
`)
	b := c.Upstreams[1]
	if b.Command != "two" || !reflect.DeepEqual(b.Env, map[string]string{"A": "1", "B": "2"}) || !reflect.DeepEqual(b.Tools.Deny, []string{"x"}) {
		t.Errorf("got %+v", b)
	}
}

func TestTOMLTables(t *testing.T) {
	file := write(t, "c.toml", "\ufeff"+`
[[mcpServers.x.unknown]]
a = 1
[[mcpServers.x.unknown]]
[mcpServers.x.unknown.b]
[mcpServers.x]
command = "c"
args = ["1", 0x10, 1_000, 07:32:00, {}]
env = {"a.b" = '''x
y'''}
`)
	got := problems(t, Options{File: file})
	if got != "c.toml: mcpServers.x.args[4]: must be a string, not a map\n" {
		t.Errorf("got %s", got)
	}
}

func TestProblemsAreErrors(t *testing.T) {
	var err error = Problems{{Source: "f", Key: "k", Text: "a"}, {Text: "b"}}
	if err.Error() != "f: k: a\nb" {
		t.Errorf("got %q", err)
	}
	if p, ok := errors.AsType[Problem](err); !ok || p.Text != "a" {
		t.Errorf("got %+v, %v", p, ok)
	}
}
