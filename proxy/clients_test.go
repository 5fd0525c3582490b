package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/user"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

// hangingServer is a legacy server that never answers a call. Called receives at each.
func hangingServer(t *testing.T) (url string, called <-chan struct{}) {
	calls := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		json.NewDecoder(r.Body).Decode(&m)
		switch m.Method {
		case "initialize":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}`, m.ID)
		case "tools/call":
			calls <- struct{}{}
			<-r.Context().Done()
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, calls
}

// A brief is an Identifier to which all are one client.
type brief struct{ who identity.Identity }

func (b *brief) Identify(*http.Request) (*identity.Identity, *identity.Refusal) { return &b.who, nil }

func (*brief) Challenge(*http.Request, *identity.Refusal) string { return "" }

func (*brief) Metadata(*http.Request) ([]byte, bool) { return nil, false }

// A logText is a log that others write.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logText) lines(part string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// TestExpiredClient: what a client on a WebSocket waits for gets the one error when its
// proof ends, then the close frame says why, and one line in the log.
func TestExpiredClient(t *testing.T) {
	t.Parallel() // it waits for a real clock
	url, called := hangingServer(t)
	var log logText
	cause := make(chan string, 1)
	p, err := New(&config.Config{Upstreams: []config.Upstream{{Name: "a", URL: url, Era: "legacy"}}},
		Options{Log: slog.New(slog.NewTextHandler(&log, nil)), Hooks: Hooks{SessionEnded: func(_ Session, e End) { cause <- e.Cause }}})
	if err != nil {
		t.Fatal(err)
	}
	soon := time.Now().Add(2 * time.Second)
	p.front.Guard.Clients = &brief{who: identity.Identity{Principal: identity.Principal{Kind: identity.JWT, Name: "alice"}, Expires: soon}}
	web := httptest.NewServer(p.Handler())
	defer web.Close()
	defer p.Close()
	ws, err := wsconn.Config{}.Dial(t.Context(), "ws"+strings.TrimPrefix(web.URL, "http")+"/ws", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	ws.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "initialize", json.RawMessage(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}`)))
	if m, err := ws.Recv(); err != nil || m.Result == nil {
		t.Fatalf("initialize: %v, %v", m, err)
	}
	ws.Send(jsonrpc.NewNotification("notifications/initialized", nil))
	ws.Send(jsonrpc.NewRequest(jsonrpc.IntID(2), "tools/call", json.RawMessage(`{"name":"x"}`)))
	<-called
	m, err := ws.Recv()
	if err != nil || time.Now().Before(soon) || string(m.Append(nil)) !=
		`{"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"Connection closed: this session is over","data":{"reason":"connection_closed","phase":"in_flight","retryable":false}}}` {
		t.Errorf("got %v, %v", m, err)
	}
	_, err = ws.Recv()
	if end, ok := errors.AsType[*wsconn.CloseError](err); !ok || end.Code != wsconn.PolicyViolation {
		t.Errorf("then %v", err)
	}
	if got := <-cause; got != "expired" {
		t.Errorf("hooks hear of %s", got)
	}
	p.Close()
	if n := log.lines("token expired"); n != 1 {
		t.Errorf("%d lines say so, want 1:\n%s", n, log.text.String())
	}
}

// TestUsersOfASocket: who comes over a Unix socket is a user of this system, without any
// configuration.
func TestUsersOfASocket(t *testing.T) {
	me, err := user.Current()
	if err != nil || me.Uid == "65534" {
		t.Skip("nobody knows who this is")
	}
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skip("this system does not say who a client is")
	}
	t.Chdir(t.TempDir())
	began := make(chan string, 1)
	p, err := New(&config.Config{Listen: []string{"unix://s"}}, Options{Hooks: Hooks{SessionBegan: func(s Session) { began <- s.Principal }}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Listen(); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- p.Serve() }()
	web := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", "s")
	}}
	req, _ := http.NewRequest(http.MethodPost, "http://localhost/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{`+
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`))
	for name, value := range map[string]string{"Content-Type": "application/json", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "server/discover"} {
		req.Header.Set(name, value)
	}
	resp, err := web.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	web.CloseIdleConnections()
	if got, want := <-began, "user:"+me.Username; got != want || resp.StatusCode != 200 {
		t.Errorf("the session is of %s, want %s; %d %s", got, want, resp.StatusCode, body)
	}
	p.Close()
	if err := <-over; err != nil {
		t.Error(err)
	}
}
