package proxy_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A configured directory that cannot be used is worth a warning, the default one is not.
func TestCacheDirThatCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for warned, test := range map[int]struct{ configured, usual string }{1: {configured: file + "/below"}, 0: {usual: file + "/below"}} {
		log := &journal{}
		p, err := proxy.New(&config.Config{CacheDir: test.configured}, proxy.Options{CacheDir: test.usual, Log: logTo(log)})
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		if n := strings.Count(log.String(), "level=WARN"); n != warned || strings.Contains(log.String(), file) {
			t.Errorf("%+v: %s", test, log)
		}
	}
}

// A call needs no list of a remote server's tools for the headers that repeat its arguments, if the
// file has one. If not, or if the one there is of the future, since the clock was wrong, one is made for it.
func TestHeadersFromTheCacheDir(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Header.Get("Mcp-Method")+" "+r.Header.Get("Mcp-Param-Of"))
		mu.Unlock()
		rec := httptest.NewRecorder()
		serveModern(rec, r)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, strings.Replace(rec.Body.String(), `{"type":"object"}`, `{"type":"object","properties":{"of":{"type":"string","x-mcp-header":"Of"}}}`, 1))
	}))
	defer server.Close()
	far := config.Upstream{Name: "far", Remote: config.Remote{URL: server.URL}}
	near := config.Upstream{Name: "near", Remote: config.Remote{URL: server.URL + "/near"}}
	dir := t.TempDir()
	for run, listed := range []bool{true, false, true} {
		if run == 2 {
			postdate(t, filepath.Join(dir, "catalog.json"))
		}
		mu.Lock()
		seen = nil
		mu.Unlock()
		p, url := serveWith(t, config.Config{CacheDir: dir, Upstreams: []config.Upstream{far, near}}, proxy.Options{})
		c := newCaller(t, url, "/mcp")
		text, headers := modern("1", "tools/call", "far__echo", `,"name":"far__echo","arguments":{"of":"x"}`)
		if status, answer := c.do(http.MethodPost, "/mcp", text, append(headers, "Mcp-Param-Of", "x")...); status != http.StatusOK {
			t.Fatal(status, answer)
		}
		mu.Lock()
		all := strings.Join(seen, ", ")
		mu.Unlock()
		if !strings.Contains(all, "tools/call x") || strings.Contains(all, "tools/list") != listed {
			t.Errorf("run %d: the server got %s", run, all)
		}
		p.Close()
	}
}

// postdate changes the times of a catalog file to those of another century.
func postdate(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	later := strings.ReplaceAll(string(text), `"asked": "20`, `"asked": "21`)
	if later == string(text) {
		t.Fatal("the file has no times")
	}
	if err := os.WriteFile(file, []byte(later), 0o600); err != nil {
		t.Fatal(err)
	}
}
