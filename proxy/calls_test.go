package proxy_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// What operators are told of a call in flight has nothing of its params.
func TestCallsInFlightTellNoParams(t *testing.T) {
	server := sdkServer()
	t.Cleanup(server.Close)
	socket := filepath.Join(t.TempDir(), "admin.sock")
	p, _ := serveWith(t, config.Config{Upstreams: []config.Upstream{
		{Name: "a", URL: server.URL, Era: "legacy", Headers: map[string]string{"X-Key": "MARK-header"}},
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
