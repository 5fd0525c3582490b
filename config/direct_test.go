package config

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestCommand(t *testing.T) {
	t.Chdir(t.TempDir())
	mkfile(t, "mcp-proxy.yaml", "not: read\n")
	c, _, err := Load(Options{Command: []string{"npx", "-y", "server"}})
	if err != nil {
		t.Fatal(err)
	}
	want := []Upstream{{
		Name: "main", Key: "--", Process: Process{Command: "npx", Args: []string{"-y", "server"}, InheritEnv: []string{"all"}},
		StartTimeout: 30 * time.Second, WriteTimeout: time.Minute, StopGrace: 2 * time.Second,
	}}
	if !reflect.DeepEqual(c.Upstreams, want) || c.File != "" {
		t.Errorf("got %+v", c)
	}

	wd, err := filepath.Abs("bin/server")
	if err != nil {
		t.Fatal(err)
	}
	settings := write(t, "settings.yaml", "drain: 1s\n")
	c, _, err = Load(Options{File: settings, Command: []string{"bin/server"}})
	if err != nil || c.Upstreams[0].Command != wd || c.Drain != time.Second {
		t.Errorf("a path and a file of settings: %+v, %v", c, err)
	}

	both := write(t, "both.yaml", "upstreams: {a: {command: x}}\n")
	if got := problems(t, Options{Command: []string{"", "x"}}); got != "--: needs a command\n" {
		t.Errorf("no command: %s", got)
	}
	if got := problems(t, Options{File: both, Command: []string{"x"}}); got != "both.yaml: upstreams: are also given after -- on the command line\n" {
		t.Errorf("upstreams in both places: %s", got)
	}
}

func TestURL(t *testing.T) {
	t.Chdir(t.TempDir())
	mkfile(t, "mcp-proxy.yaml", "not: read\n")
	t.Setenv("CONFIG_TEST_TOKEN", "hunter2")
	t.Setenv("MCP_PROXY_LISTEN", "127.0.0.1:1")
	c, warnings, err := Load(Options{
		URL:     "https://example.com/mcp?a=b",
		Headers: []string{"Authorization: Bearer ${CONFIG_TEST_TOKEN}", "X-Time:  a:b ", "X-Empty:"},
	})
	if err != nil || len(warnings) > 0 {
		t.Fatal(warnings, err)
	}
	want := []Upstream{{
		Name: "example.com", Key: "URL", Remote: Remote{
			URL:     "https://example.com/mcp?a=b",
			Headers: map[string]string{"Authorization": "Bearer hunter2", "X-Time": "a:b", "X-Empty": ""},
		},
		StartTimeout: 30 * time.Second, WriteTimeout: time.Minute, StopGrace: 2 * time.Second,
	}}
	if !reflect.DeepEqual(c.Upstreams, want) || c.File != "" {
		t.Errorf("got %+v", c)
	}

	settings := write(t, "settings.yaml", "drain: 1s\n")
	c, _, err = Load(Options{File: settings, URL: "ws://example.com"})
	if err != nil || c.Upstreams[0].URL != "ws://example.com" || c.Drain != time.Second {
		t.Errorf("a file of settings: %+v, %v", c, err)
	}
}

func TestURLMistakes(t *testing.T) {
	t.Setenv("CONFIG_TEST_SECRET", "hunter2\nX-Other: b")
	got := problems(t, Options{URL: "ftp://hunter2", Headers: []string{
		"hunter2", "a b: hunter2", ": hunter2", "A: ${CONFIG_TEST_SECRET}", "B: ${CONFIG_TEST_UNSET}", "C: ok", "c: hunter2", "content-length: hunter2",
	}})
	want := `URL: must be a URL such as https://example.com/mcp (it begins with http://, https://, ws:// or wss://, the last two without a user)
--header: must be "Name: value"
--header: must be "Name: value"
--header: must be "Name: value"
--header: A: must be a header value on one line, without control characters
--header: B: the variable CONFIG_TEST_UNSET is not set
--header: c: is given twice
--header: content-length: belongs to the protocol, and cannot be set
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}

	both := write(t, "both.yaml", "upstreams: {a: {command: x}}\n")
	if got := problems(t, Options{File: both, URL: "http://a"}); got != "both.yaml: upstreams: are also given as a URL on the command line\n" {
		t.Errorf("upstreams in both places: %s", got)
	}
	if got := problems(t, Options{Command: []string{"x"}, URL: "http://a"}); got != "--: a command and a URL exclude each other\n" {
		t.Errorf("a command and a URL: %s", got)
	}
}

// Plain http to another machine is the user's choice; credentials that others could read on the
// way are a warning.
func TestCarelessCredentials(t *testing.T) {
	file := write(t, "mcp-proxy.yaml", `
upstreams:
  open: {url: "http://example.com", headers: {authorization: "Bearer hunter2", X-Tenant: a}, headersFrom: {X-Other: f}}
  socket: {url: "ws://example.com", headers: {X-Api-Key: hunter2}}
  plain: {url: "http://example.com", headers: {X-Tenant: a}}
  near: {url: "http://localhost:1", headers: {Authorization: a}}
  safe: {url: "https://example.com", headers: {Authorization: a}}
`)
	_, warnings, err := Load(Options{File: file})
	if err != nil {
		t.Fatal(err)
	}
	got := strings.ReplaceAll(strings.Join(warnings, "\n"), filepath.Dir(file)+"/", "")
	want := "mcp-proxy.yaml: upstreams.open: sends X-Other, authorization unencrypted to another machine\n" +
		"mcp-proxy.yaml: upstreams.socket: sends X-Api-Key unencrypted to another machine"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	_, warnings, err = Load(Options{URL: "http://example.com", Headers: []string{"Cookie: a"}})
	if err != nil || len(warnings) != 1 || warnings[0] != "URL: sends Cookie unencrypted to another machine" {
		t.Errorf("a URL: %q, %v", warnings, err)
	}
}

func TestServersOnTheCommandLine(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	mkfile(t, "mcp-proxy.yaml", "not: read\n")
	c, _, err := Load(Options{
		Servers: []string{`files=npx -y "a server" 'it''s'`, "docs=https://example.com/mcp?a=b"},
		Env:     []string{"A=b=c"}, Cwd: "data", Shared: true, AllowedOrigins: []string{"https://app.example.com"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []Upstream{{
		Name: "files", Key: "--server files", Process: Process{
			Command: "npx", Args: []string{"-y", "a server", "its"}, InheritEnv: []string{"all"},
			Env: map[string]string{"A": "b=c"}, Cwd: c.Upstreams[0].Cwd,
		}, Shared: true,
		StartTimeout: 30 * time.Second, WriteTimeout: time.Minute, StopGrace: 2 * time.Second,
	}, {
		Name: "docs", Key: "--server docs", Remote: Remote{URL: "https://example.com/mcp?a=b"}, Shared: true,
		StartTimeout: 30 * time.Second, WriteTimeout: time.Minute, StopGrace: 2 * time.Second,
	}}
	if !reflect.DeepEqual(c.Upstreams, want) || filepath.Base(c.Upstreams[0].Cwd) != "data" || c.AllowedOrigins[0] != "https://app.example.com" {
		t.Errorf("got %+v", c)
	}

	for _, test := range []struct {
		o    Options
		want string
	}{
		{Options{Servers: []string{"npx"}}, "--server: must be NAME=COMMAND or NAME=URL"},
		{Options{Servers: []string{"a__b=npx"}}, "--server: must be NAME=COMMAND or NAME=URL"},
		{Options{Servers: []string{"server-card=npx"}}, "--server server-card: the name is reserved"},
		{Options{Servers: []string{"a=npx 'b"}}, "--server a: must be a command line, with quotes that are closed"},
		{Options{Servers: []string{"a=npx --url https://example.com?a=b&token=c"}}, "--server a: has one of ; & | < > without quotes"},
		{Options{Servers: []string{"a=ftp://example.com"}}, "--server a: must be a URL"},
		{Options{Servers: []string{"a=npx", "a=uvx"}}, "--server a: is given twice"},
		{Options{Servers: []string{"a=npx"}, Command: []string{"x"}}, "--server: excludes a command after --"},
		{Options{Servers: []string{"a=npx"}, Env: []string{"A"}}, "--env: must be NAME=VALUE"},
		{Options{Servers: []string{"a=https://example.com"}, Env: []string{"A=b"}}, "--env: is for a command"},
		{Options{Servers: []string{"a=https://example.com"}, Cwd: "x"}, "--cwd: is for a command"},
		{Options{File: write(t, "file.yaml", "upstreams: {a: {command: x}}\n"), Shared: true}, "--shared: is for servers on the command line"},
		{Options{Servers: []string{"a=npx"}, AllowedOrigins: []string{"app"}}, "--cors: must be an origin"},
	} {
		if got := problems(t, test.o); !strings.HasPrefix(got, test.want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%q; want %q", got, test.want)
		}
	}
}

func TestCommandWords(t *testing.T) {
	const line = `.\bin\files.exe "C:\My Files" '\\host\x'`
	words, _, err := commandWords(line, true)
	if want := []string{`.\bin\files.exe`, `C:\My Files`, `\\host\x`}; err != nil || !slices.Equal(words, want) {
		t.Errorf("on Windows %q, %v; want %q", words, err, want)
	}
	words, _, err = commandWords(`files a\ b`, false)
	if want := []string{"files", "a b"}; err != nil || !slices.Equal(words, want) {
		t.Errorf("elsewhere %q, %v; want %q", words, err, want)
	}
}
