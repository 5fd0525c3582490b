package proxy_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// Clients and operators read of a link that has never been up what it is called and why.
func TestLinkThatNeverWasUp(t *testing.T) {
	t.Parallel() // the hello has 10 s
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(refuses.Close)
	for name, tt := range map[string]struct {
		link config.Link
		why  string
	}{
		"accepting":   {config.Link{Accept: true, TokenFile: secretFile(t, "token-of-tools")}, "has not connected yet (link lost)"},
		"closed port": {config.Link{Dial: "tcp://127.0.0.1:1"}, "is unreachable: connection refused"},
		"silent":      {config.Link{Dial: "tcp://" + silent.Addr().String()}, "does not answer the hello of the link (timeout)"},
		"no socket":   {config.Link{Dial: "unix:///no/such/socket"}, "is unreachable: connect failed"},
		"bad token":   {config.Link{Dial: strings.Replace(refuses.URL, "http", "ws", 1) + "/link", TokenFile: secretFile(t, "token-of-tools")}, "rejected our credentials (HTTP 401)"},
	} {
		t.Run(name, func(t *testing.T) {
			tt.link.Name, tt.link.Key, tt.link.Heartbeat = "tools", "links.tools", time.Minute
			p, url := serveWith(t, config.Config{Links: []config.Link{tt.link}}, proxy.Options{Patience: 10 * time.Millisecond})
			if got := p.Snapshot().Links[0].Why; (got == "has not connected yet (link lost)") != tt.link.Accept {
				t.Errorf("at first it %s", got)
			}
			eventually(t, "status", func() bool { return p.Snapshot().Links[0].Why == tt.why })
			_, body := newCaller(t, url, "/mcp").say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"files__echo"}}`)
			if want := `"Connection closed: tools ` + tt.why + `"`; !strings.Contains(body, want) {
				t.Errorf("%s, want %s", body, want)
			}
		})
	}
}
