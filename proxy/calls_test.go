package proxy_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy"
	"github.com/mcp-proxy/mcp-proxy/upstream/oauth/oauthtest"
)

// The list of requests in flight shows no params.
func TestCallsInFlightTellNoParams(t *testing.T) {
	t.Parallel()
	server := sdkServer()
	t.Cleanup(server.Close)
	socket := filepath.Join(t.TempDir(), "admin.sock")
	p, _ := serveWith(t, config.Config{Upstreams: []config.Upstream{
		{Name: "a", Era: "legacy", Remote: config.Remote{URL: server.URL, Headers: map[string]string{"X-Key": "MARK-header"}}},
	}}, proxy.Options{AdminSocket: socket})
	client := dialStdio(t, p)
	client.say(`{"jsonrpc":"2.0","id":"MARK-id","method":"tools/call","params":{"name":"hang","arguments":{},"_meta":{"progressToken":"MARK-token","x":"MARK-meta"}}}`)
	<-server.hanging
	for _, path := range []string{"/calls", "/status"} {
		text := string(operatorGets(t, socket, path))
		if strings.Contains(text, "MARK") || path == "/calls" && !strings.Contains(text, `"tool":"hang"`) {
			t.Errorf("%s: %s", path, text)
		}
	}
	server.CloseClientConnections()
	client.hears(`MARK-id`)
	client.leave()
}

// callsAt waits until the list has a request with that wait, and returns it.
func callsAt(t *testing.T, socket string, wait proxy.Wait) (found observe.OpenRequest) {
	t.Helper()
	eventually(t, fmt.Sprintf("call that waits for %s", wait), func() bool {
		var now proxy.Calls
		if err := json.Unmarshal(operatorGets(t, socket, "/calls"), &now); err != nil {
			t.Fatal(err)
		}
		for _, found = range now.Calls {
			if found.WaitsFor == wait {
				return true
			}
		}
		return false
	})
	return found
}

// A client that comes back to a server which has died when it started waits until that may be
// started again. Operators see that, until when, and why.
func TestCallThatWaitsForBackOff(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "admin.sock")
	p, _ := serveWith(t, config.Config{Upstreams: []config.Upstream{
		{Name: "a", Process: config.Process{Command: "sh", Args: []string{"-c", "exit 3"}}, StartTimeout: patience},
	}}, proxy.Options{AdminSocket: socket})
	client := dialStdio(t, p) // two starts have failed
	var seen atomic.Bool
	var insisting sync.WaitGroup
	insisting.Go(func() { // each time it waits longer
		for id := 1; !seen.Load(); id++ {
			client.initialize(id)
			client.hears(fmt.Sprintf(`"id":%d`, id))
		}
	})
	c := callsAt(t, socket, proxy.ForBackOff)
	seen.Store(true)
	if c.Method != "initialize" || c.Upstream != "a" || !strings.HasPrefix(c.Detail, "not before ") || !strings.HasSuffix(c.Detail, " after start failed") {
		t.Errorf("%+v", c)
	}
	insisting.Wait()
	client.leave()
}

// A call to a server that wants a login waits for the person, and then continues.
func TestCallThatWaitsForLogin(t *testing.T) {
	t.Setenv("BROWSER", "/there/is/none")
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	site := oauthtest.New(t, oauthtest.Variations{})
	socket := filepath.Join(t.TempDir(), "admin.sock")
	asked := make(chan string, 1)
	p, _ := serveWith(t, config.Config{Upstreams: []config.Upstream{
		{Name: "a", Remote: config.Remote{URL: site.Endpoint()}, StartTimeout: time.Hour},
	}}, proxy.Options{AdminSocket: socket, Stdio: true, Patience: time.Hour, AskLogin: func(page proxy.LoginPrompt) { asked <- page.URL }})
	client := openStdio(t, p)
	client.initialize(0)
	if c := callsAt(t, socket, proxy.ForLogin); c.Method != "initialize" || c.Upstream != "a" || c.Detail != "a login is needed" {
		t.Errorf("%+v", c)
	}
	resp, err := http.Get(<-asked)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	client.hears(`"id":0,"result"`)
	client.leave()
}
