package proxy_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A sessionless server speaks both eras over HTTP, and begins no sessions. As servers of real SDKs
// do, it offers more in the legacy era, and says there why a tool failed.
type sessionless struct {
	mu    sync.Mutex
	heard []string // era and method of each message
}

func (s *sessionless) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	m, err := jsonrpc.Decode(body)
	if r.Method != http.MethodPost || err != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	era := "legacy"
	if strings.Contains(string(m.Params), `"io.modelcontextprotocol/protocolVersion"`) {
		era = "modern"
	}
	said := era + " " + m.Method
	s.mu.Lock()
	s.heard = append(s.heard, said)
	s.mu.Unlock()
	if !m.IsRequest() {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	reply := jsonrpc.NewResult(m.ID, json.RawMessage(`{}`))
	switch said {
	case "legacy initialize":
		reply.Result = json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{"subscribe":true},"logging":{}},"serverInfo":{"name":"s","version":"1"}}`)
	case "modern server/discover":
		reply.Result = json.RawMessage(`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"ttlMs":0,"cacheScope":"public"}`)
	case "modern tools/list":
		reply.Result = json.RawMessage(`{"resultType":"complete","tools":[{"name":"fail","inputSchema":{"type":"object"}}],"ttlMs":0,"cacheScope":"public"}`)
	case "legacy tools/call":
		reply = jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "boom"})
	case "modern tools/call":
		reply = jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "Internal server error"})
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(reply.Append(nil))
}

// hears waits until the server has heard something since the last call.
func (s *sessionless) hears(t *testing.T, what string) {
	t.Helper()
	eventually(t, what, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(strings.Join(s.heard, "\n"), what)
	})
}

// A server that speaks both eras is spoken to in that of the client, also if it begins no sessions,
// and whatever clients came before. Only a client that it can ask in the modern era alone is
// translated.
func TestSessionlessServer(t *testing.T) {
	s := new(sessionless)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	_, url := serveWith(t, config.Config{Upstreams: []config.Upstream{{Name: "s", Remote: config.Remote{URL: server.URL}}}}, proxy.Options{})
	const call = `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"fail"}}`
	for range 2 {
		asked := newCaller(t, url, "/mcp")
		if _, text := asked.say(call); !strings.Contains(text, `"message":"Internal server error"`) {
			t.Errorf("translated: %s", text)
		}
		s.mu.Lock()
		s.heard = nil
		s.mu.Unlock()

		legacy := *asked
		resp := legacy.open(http.MethodPost, "/mcp", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{"listChanged":true}},"clientInfo":{"name":"t","version":"1"}}}`)
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		legacy.session = resp.Header.Get("Mcp-Session-Id")
		legacy.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		for _, tt := range [][2]string{
			{`{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"x://a"}}`, `"result":{}`},
			{`{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"debug"}}`, `"result":{}`},
			{call, `"message":"boom"`},
		} {
			if _, text := legacy.say(tt[0]); !strings.Contains(text, tt[1]) {
				t.Errorf("%s: %s", tt[0], text)
			}
		}
		legacy.say(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
		s.hears(t, "legacy notifications/roots/list_changed")

		modern := *asked
		modern.session = ""
		if _, text := modern.ask("tools/call", "fail", `,"name":"fail"`); !strings.Contains(text, `"message":"Internal server error"`) {
			t.Errorf("modern: %s", text)
		}
	}
}
