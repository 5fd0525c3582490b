package remote

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// TestGoSDKModern speaks with the Go SDK's server of the modern era, which hears of
// a cancelled call by its connection.
func TestGoSDKModern(t *testing.T) {
	waits := make(chan string, 1)
	s := sdkServer(waits)
	h := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s },
		&mcp.StreamableHTTPOptions{Stateless: true, PropagateRequestCancellation: true}))
	defer h.Close()
	up, l := server(t, h.URL)
	wantVerdict(t, up, true, "")
	c := dialModern(t, up)
	contains := func(m *jsonrpc.Message, what string) {
		t.Helper()
		if !strings.Contains(string(m.Append(nil)), what) {
			t.Errorf("got %s, want %s", m.Append(nil), what)
		}
	}
	c.request(1, "server/discover", params(""))
	contains(c.recv(), `"supportedVersions":["2026-07-28"`)
	c.request(2, "tools/list", params(""))
	contains(c.recv(), `"name":"wait"`)
	c.request(3, "tools/call", params(`"name":"wait","arguments":{}`))
	conntest.Await(t, "call", waits)
	c.cancel(3)
	conntest.Await(t, "cancellation", waits)
	c.request(4, "no/such", params(""))
	contains(c.recv(), `-32601`)
	c.request(5, "subscriptions/listen", params(`"notifications":{"toolsListChanged":true}`))
	if m := c.recv(); m.Method != "notifications/subscriptions/acknowledged" || m.Related != jsonrpc.IntID(5) {
		t.Errorf("got %s", m.Append(nil))
	}
	s.AddTool(&mcp.Tool{Name: "new", InputSchema: map[string]any{"type": "object"}}, nil)
	if m := c.recv(); m.Method != "notifications/tools/list_changed" || m.Related != jsonrpc.IntID(5) {
		t.Errorf("got %s", m.Append(nil))
	}
	c.close()
	if l.String() != "" {
		t.Errorf("the log is %s", l)
	}
}

// TestGoSDKLegacy is a server of the Go SDK with sessions: it answers
// server/discover, but not with a version of the modern era.
func TestGoSDKLegacy(t *testing.T) {
	s := sdkServer(nil)
	get := func(*http.Request) *mcp.Server { return s }
	for name, handler := range map[string]http.Handler{
		"streamable": mcp.NewStreamableHTTPHandler(get, nil), "SSE": mcp.NewSSEHandler(get, nil),
	} {
		h := httptest.NewServer(handler)
		up, _ := server(t, h.URL)
		if modern, err := up.Probe(t.Context()); modern || err != nil {
			t.Errorf("%s: %v, %v", name, modern, err)
		}
		h.Close()
	}
}
