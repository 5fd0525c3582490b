package proxy_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A remote server of the modern era that cannot be reached when a legacy client first needs it has not refused
// initialize: the error says why it was not reached, and does not last.
func TestModernRemoteThatIsGone(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(serveModern))
	defer server.Close()
	other := httptest.NewServer(http.HandlerFunc(serveModern))
	t.Cleanup(other.Close)
	_, url := serveWith(t, config.Config{Upstreams: []config.Upstream{
		{Name: "far", Remote: config.Remote{URL: server.URL}}, {Name: "near", Remote: config.Remote{URL: other.URL}}}}, proxy.Options{})
	call := `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"far__echo"}}`
	if _, body := newCaller(t, url, "/mcp").say(call); !strings.Contains(body, `"content"`) {
		t.Fatalf("before: %s", body)
	}
	server.Close()
	_, body := newCaller(t, url, "/mcp").say(call)
	if want := "far is unreachable: connection refused"; !strings.Contains(body, want) || !strings.Contains(body, `"retryable":true`) {
		t.Errorf("%s, want %q", body, want)
	}
}

func serveModern(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	var m struct {
		ID     json.RawMessage
		Method string
	}
	if json.Unmarshal(text, &m) != nil || r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	results := map[string]string{
		"server/discover": `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"serverInfo":{"name":"far","version":"1"},"ttlMs":0,"cacheScope":"public"}`,
		"tools/list":      `{"resultType":"complete","tools":[{"name":"echo","inputSchema":{"type":"object"}}],"ttlMs":0,"cacheScope":"public"}`,
		"tools/call":      `{"resultType":"complete","content":[]}`,
	}
	w.Header().Set("Content-Type", "application/json")
	if result := results[m.Method]; result != "" && strings.Contains(string(text), "2026-07-28") {
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
		return
	}
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"Method not found"}}`, m.ID)
}
