package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

// wsFake accepts WebSockets for a test to be the server on.
func wsFake(t *testing.T) (url string, conns <-chan jsonrpc.Conn) {
	t.Helper()
	accepted := make(chan jsonrpc.Conn, 16)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := (wsconn.Config{}).Accept(w, r, nil); err == nil {
			accepted <- c
		}
	}))
	t.Cleanup(server.Close)
	return "ws" + strings.TrimPrefix(server.URL, "http"), accepted
}

// wsPair returns both ends of a session of s, which is at wsFake's.
func wsPair(t *testing.T, s *Server, conns <-chan jsonrpc.Conn) (client, peer jsonrpc.Conn) {
	t.Helper()
	client, err := s.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	peer = wsAwait(t, conns)
	t.Cleanup(func() {
		go peer.Close()
		client.Close()
		peer.Close()
	})
	return client, peer
}

func wsAwait[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing comes")
		panic("unreachable")
	}
}

func TestWebSocketIsConn(t *testing.T) {
	conntest.Run(t, func(t *testing.T) (a, b jsonrpc.Conn) {
		url, conns := wsFake(t)
		return wsPair(t, &Server{URL: url}, conns)
	})
}

// wantClosedError checks the end of a session, or of the attempt to begin one.
func wantClosedError(t *testing.T, err error, cause string, delivered bool) {
	t.Helper()
	if end, ok := errors.AsType[*jsonrpc.ClosedError](err); !ok || end.Cause.String() != cause || end.Delivered != delivered {
		t.Errorf("error %v, want cause %q, delivered %v", err, cause, delivered)
	}
}

func TestWebSocketIsNotDialled(t *testing.T) {
	status := func(code int) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/")
			w.WriteHeader(code)
		}))
		t.Cleanup(server.Close)
		return "ws" + strings.TrimPrefix(server.URL, "http")
	}
	encrypted := httptest.NewUnstartedServer(http.NotFoundHandler())
	encrypted.Config.ErrorLog = log.New(io.Discard, "", 0)
	encrypted.StartTLS()
	t.Cleanup(encrypted.Close)
	for name, tt := range map[string]struct {
		server *Server
		cause  string
	}{
		"401":      {&Server{URL: status(401)}, "HTTP 401"},
		"404":      {&Server{URL: status(404)}, "HTTP 404"},
		"Redirect": {&Server{URL: status(307)}, "HTTP 307"},
		"Page":     {&Server{URL: status(200)}, "HTTP 200"},
		"Nobody":   {&Server{URL: "ws://127.0.0.1:1"}, "connection refused"},
		"CA":       {&Server{URL: "wss" + strings.TrimPrefix(encrypted.URL, "https"), TLS: &tls.Config{}}, "TLS handshake failed"},
		"Header":   {&Server{URL: status(200), HeadersFrom: map[string]string{"A": filepath.Join(t.TempDir(), "none")}}, "bad header file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tt.server.Dial(t.Context())
			wantClosedError(t, err, tt.cause, false)
		})
	}
	t.Run("Stopped", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := (&Server{URL: status(200)}).Dial(ctx)
		wantClosedError(t, err, "host stopped", false)
	})
}

func TestWebSocketEnds(t *testing.T) {
	foreign := make(chan *websocket.Conn, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := new(websocket.Upgrader).Upgrade(w, r, nil); err == nil {
			foreign <- c
		}
	}))
	defer server.Close()
	s := &Server{URL: "ws" + strings.TrimPrefix(server.URL, "http"), Limits: jsonrpc.Limits{Message: 1000}}
	for name, tt := range map[string]struct {
		end   func(peer *websocket.Conn, cancel context.CancelFunc)
		cause string
	}{
		"1011": {func(peer *websocket.Conn, _ context.CancelFunc) {
			peer.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1011, "no"), time.Time{})
		}, "WebSocket closed 1011"},
		"Cut": {func(peer *websocket.Conn, _ context.CancelFunc) { peer.NetConn().Close() }, "connection lost"},
		"Reset": {func(peer *websocket.Conn, _ context.CancelFunc) {
			peer.NetConn().(*net.TCPConn).SetLinger(0)
			peer.Close()
		}, "connection lost"},
		"Large": {func(peer *websocket.Conn, _ context.CancelFunc) {
			peer.WriteMessage(websocket.TextMessage, make([]byte, 1001))
		}, "message over the limit"},
		"Stopped": {func(_ *websocket.Conn, cancel context.CancelFunc) { cancel() }, "host stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := &Server{URL: s.URL, Limits: s.Limits}
			c, err := s.Dial(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			peer := wsAwait(t, foreign)
			defer peer.Close()
			peer.WriteMessage(websocket.TextMessage, []byte(`{"jsonrpc":"2.0","method":"last"}`))
			if m, err := c.Recv(); err != nil || m.Method != "last" {
				t.Errorf("Recv returned %v, %v", m, err)
			}
			tt.end(peer, cancel)
			_, err = c.Recv()
			wantClosedError(t, err, tt.cause, true)
			go func() { peer.ReadMessage(); peer.Close() }()
			c.Close()
		})
	}
}

func TestWebSocketHeaders(t *testing.T) {
	got := make(chan *http.Request, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r
		w.WriteHeader(http.StatusTeapot)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("Bearer from file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &Server{
		URL: "ws" + strings.TrimPrefix(server.URL, "http") + "/path?q=1",
		Headers: map[string]string{
			"X-Team": "a", "authorization": "loses", "Host": "other.example",
			"Sec-WebSocket-Protocol": "x", "Connection": "close", "Mcp-Session-Id": "x",
		},
		HeadersFrom: map[string]string{"Authorization": file},
	}
	_, err := s.Dial(t.Context())
	wantClosedError(t, err, "HTTP 418", false)
	r := wsAwait(t, got)
	for name, want := range map[string]string{
		"X-Team": "a", "Authorization": "Bearer from file", "User-Agent": "mcp-proxy",
		"Sec-Websocket-Protocol": "mcp", "Connection": "Upgrade", "Mcp-Session-Id": "",
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if r.Host != "other.example" || r.URL.String() != "/path?q=1" {
		t.Errorf("asked %s for %s", r.Host, r.URL)
	}
}
