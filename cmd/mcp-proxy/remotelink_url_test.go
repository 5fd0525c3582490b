//go:build unix

package main

import (
	"bytes"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// aProxy runs a proxy in this process and returns its URL. A client waits for its upstreams for patience, or
// as usual if that is 0.
func aProxy(t *testing.T, patience time.Duration, yaml string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "proxy.yaml")
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := config.Load(config.Options{File: file})
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.New(cfg, proxy.Options{Patience: patience})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(p.Handler())
	t.Cleanup(func() {
		_ = p.Shutdown(t.Context())
		server.Close()
	})
	return server.URL
}

// call waits for a tool of an upstream that is still starting, and uses its schema.
func TestCallWaitsForAnUpstreamThatStarts(t *testing.T) {
	t.Parallel()
	may := filepath.Join(t.TempDir(), "may")
	url := aProxy(t, time.Second, `
listTimeout: 3s # in which a busy machine starts the other one
upstreams:
  quick: {command: fakeserver}
  slow: {command: sh, args: [-c, "until [ -e `+may+` ]; do sleep 0.02; done; exec fakeserver"]}
`)
	cmd := exec.CommandContext(t.Context(), "mcp-proxy", "call", "slow__echo", "n:=1", "--json", "--url", url+"/mcp")
	var out bytes.Buffer
	log := &lines{}
	cmd.Stdout, cmd.Stderr = &out, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	eventually(t, "a word about the start", func() bool {
		return strings.Contains(log.String(), "slow__echo is not listed yet: its server is still starting")
	})
	if err := os.WriteFile(may, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), `"n": 1`) {
		t.Errorf("%v: %s%s", err, out.String(), log)
	}
}

// Errors of a server at a URL are printed in full, with the name of its host.
func TestCommandsTellWhatAServerSays(t *testing.T) {
	t.Parallel()
	url := aProxy(t, 0, `
upstreams:
  quick: {command: fakeserver}
  crashes: {command: sh, args: [-c, "exit 3"]}
  closed: {url: "http://127.0.0.1:1/mcp"}
`)
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	defer secure.Close()
	tls := strings.TrimPrefix(secure.URL, "https://")
	host := strings.TrimPrefix(url, "http://")
	if _, _, err := net.SplitHostPort(host); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ args, want string }{
		{"tools URL/mcp/crashes", host + " refused initialize: crashes did not start: exit status 3 (event "},
		{"call x --url URL/mcp/crashes", host + " refused initialize: crashes did not start: exit status 3 (event "},
		{"tools URL/mcp/closed", host + " refused initialize: closed is unreachable: connection refused (event "},
		{"call crashes__x --url URL/mcp", "crashes did not start: exit status 3"},
		{"call quick__ecoh --url URL/mcp", `there is no tool "quick__ecoh"; did you mean quick__echo?`},
		{"tools URL", host + " answered with HTTP 404; try " + url + "/mcp"},
		{"call quick__echo --url URL/", host + " answered with HTTP 404; try " + url + "/mcp"},
		{"tools URL/mpc", host + " answered with HTTP 404; try " + url + "/mcp"},
		{"tools ws://" + host + "/mcp", host + " answered with HTTP 400; try ws://" + host + "/ws"},
		{"tools URL/mcp/quik", host + " answered with HTTP 404: Invalid request: no such upstream; there are quick, crashes, closed\n"},
		{"tools http://" + tls + "/mcp", tls + " answered with HTTP 400; if it expects TLS, https://" + tls + "/mcp\n"},
		{"tools ws://" + tls + "/ws", tls + " answered with HTTP 400; if it expects TLS, wss://" + tls + "/ws\n"},
		{"tools http://127.0.0.1:1/mcp", "127.0.0.1:1 is unreachable: connection refused"},
	} {
		text, code := command(t, nil, strings.Fields(strings.Replace(tt.args, "URL", url, 1))...)
		if code != exitError || strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "mcp-proxy: "+tt.want) {
			t.Errorf("%s: %d, %q, want %q", tt.args, code, text, tt.want)
		}
	}
	text, code := command(t, []string{"HTTP_PROXY=" + url}, "tools", "http://elsewhere.example/mcp")
	if want := "mcp-proxy: elsewhere.example refused the request (HTTP 403): Invalid request: Host is not allowed\n"; code != exitError || text != want {
		t.Errorf("another Host: %d, %q, want %q", code, text, want)
	}
}

// call says that a server starts, once its tools are known. That is a progress of -1, which is no number for people.
func TestCallShowsTheStartOfAServer(t *testing.T) {
	t.Parallel()
	may := filepath.Join(t.TempDir(), "may")
	url := aProxy(t, time.Minute, `
upstreams:
  other: {command: fakeserver}
  slow: {command: sh, args: [-c, "until [ -e `+may+` ]; do sleep 0.02; done; exec fakeserver"]}
`)
	allow := func() {
		if err := os.WriteFile(may, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	allow()
	call := func() *exec.Cmd {
		return exec.CommandContext(t.Context(), "mcp-proxy", "call", "slow__echo", "--url", url+"/mcp")
	}
	if text, err := call().CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	os.Remove(may)
	log := &lines{}
	cmd := call()
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a word about the start", func() bool { return strings.Contains(log.String(), "progress: starting slow") })
	allow()
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v: %s", err, log)
	}
}
