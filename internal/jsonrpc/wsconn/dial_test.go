package wsconn

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// dial connects to a server of ours.
func (s *wsServer) dialOurs(cfg Config) (client, server *Conn) {
	s.t.Helper()
	client, err := cfg.Dial(s.t.Context(), s.url, nil, s.tls)
	if err != nil {
		s.t.Fatal(err)
	}
	c := conntest.Await(s.t, "upgraded connection", s.conns)
	s.t.Cleanup(func() { client.Close(); c.Close() })
	return client, c.(*Conn)
}

func TestConnBothOurs(t *testing.T) {
	t.Run("TCP", func(t *testing.T) {
		t.Parallel() // it waits more than it works
		conntest.Run(t, func(t *testing.T) (a, b jsonrpc.Conn) {
			return newWSServer(t, Config{}).dialOurs(Config{})
		})
	})
	t.Run("TLS", func(t *testing.T) {
		t.Parallel() // it waits more than it works
		conntest.Run(t, func(t *testing.T) (a, b jsonrpc.Conn) {
			return newTLSServer(t, Config{}).dialOurs(Config{})
		})
	})
}

// A foreign server uses only gorilla. It upgrades, and gives the connection to the test, which closes it.
func newForeignServer(t *testing.T, u websocket.Upgrader) (url string, conns <-chan *websocket.Conn) {
	t.Helper()
	accepted := make(chan *websocket.Conn, 16)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, err := u.Upgrade(w, r, nil); err == nil {
			accepted <- c
		}
	}))
	t.Cleanup(server.Close)
	return "ws" + strings.TrimPrefix(server.URL, "http"), accepted
}

// dialForeign returns both ends of a connection to a foreign server.
func dialForeign(t *testing.T, cfg Config) (*Conn, *websocket.Conn) {
	t.Helper()
	url, conns := newForeignServer(t, websocket.Upgrader{})
	c, err := cfg.Dial(t.Context(), url, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	server := conntest.Await(t, "upgraded connection", conns)
	server.SetReadDeadline(time.Now().Add(conntest.Patience))
	t.Cleanup(func() { server.Close(); c.Close() })
	return c, server
}

func TestConnOfGorillaServer(t *testing.T) {
	t.Parallel()
	conntest.Run(t, func(t *testing.T) (a, b jsonrpc.Conn) {
		c, server := dialForeign(t, Config{})
		return c, &wsClient{Conn: server}
	})
}

// Messages of a client are read before its close frame.
func TestClientCloseIs1000(t *testing.T) {
	c, server := dialForeign(t, Config{})
	server.WriteMessage(websocket.TextMessage, []byte(`{"jsonrpc":"2.0","method":"unread"}`))
	c.Send(jsonrpc.NewNotification("last", nil))
	conntest.During(t, func() {
		if texts := wantCode(t, server, 1000); len(texts) != 1 || !strings.Contains(texts[0], "last") {
			t.Errorf("before the close frame: %s", texts)
		}
		server.Close()
	}, func() { c.Close() })
	wantGone(t, c)
}

func TestServerCloses(t *testing.T) {
	for _, code := range []int{1000, 1001, 1011, 4000} {
		c, server := dialForeign(t, Config{})
		server.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, ""), time.Time{})
		_, err := conntest.RecvOrEnd(t, c)
		if closed, ok := errors.AsType[*CloseError](err); !ok || closed.Code != code || !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("Recv returned %v, want the close frame's %d", err, code)
		}
		wantCode(t, server, code)
	}
}

// A server that reads nothing ends the connection with a blocked Send.
func TestSilentServer(t *testing.T) {
	c, _ := dialForeign(t, Config{WriteTimeout: time.Second})
	blocked := fill(t, c)
	if _, err := conntest.RecvOrEnd(t, c); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Recv returned %v", err)
	}
	if err := conntest.Await(t, "end of the blocked Send", blocked); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Send returned %v", err)
	}
}

// Frames that a server must not send end the connection.
func TestHostileServer(t *testing.T) {
	header100M := []byte{0x81, 127, 0, 0, 0, 0, 0x06, 0x40, 0, 0}
	for name, tt := range map[string]struct {
		frame []byte
		cause error
	}{
		"Masked":       {[]byte{0x81, 0x82, 0, 0, 0, 0, '{', '}'}, nil},
		"Binary":       {[]byte{0x82, 0x02, '{', '}'}, errBinary},
		"Compressed":   {[]byte{0xc1, 0x02, '{', '}'}, nil},
		"100MiB":       {header100M, ErrTooLarge},
		"LongPing":     {[]byte{0x89, 126, 1, 0}, nil},
		"Continuation": {[]byte{0x80, 0x01, 'a'}, nil},
		"Negative":     {[]byte{0x81, 127, 0xff, 0, 0, 0, 0, 0, 0, 0}, ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			c, server := dialForeign(t, Config{})
			server.NetConn().Write(tt.frame)
			_, err := conntest.RecvOrEnd(t, c)
			if !errors.Is(err, jsonrpc.ErrClosed) || tt.cause != nil && !errors.Is(err, tt.cause) {
				t.Errorf("Recv returned %v, want %v", err, tt.cause)
			}
			wantGone(t, c)
			conntest.During(t, func() {
				for {
					if _, _, err := server.ReadMessage(); err != nil {
						server.Close()
						return
					}
				}
			}, func() { c.Close() })
		})
	}
}

// Each frame has its own key, and the caller's message is unchanged.
func TestClientMasks(t *testing.T) {
	c, server := dialForeign(t, Config{})
	text := string(sized(1000).Append(nil))
	m, _ := jsonrpc.Decode([]byte(text))
	go func() {
		for range 3 {
			c.SendAll([]*jsonrpc.Message{m, m})
		}
	}()
	keys := map[string]bool{}
	for range 6 {
		frame := make([]byte, 8+len(text))
		if _, err := io.ReadFull(server.NetConn(), frame); err != nil {
			t.Fatal(err)
		}
		key, payload := frame[4:8], frame[8:]
		if !bytes.Equal(frame[:4], []byte{0x81, 0xfe, byte(len(text) >> 8), byte(len(text))}) {
			t.Errorf("header % x", frame[:4])
		}
		for i := range payload {
			payload[i] ^= key[i%4]
		}
		if string(payload) != text {
			t.Errorf("unmasked %.100s", payload)
		}
		keys[string(key)] = true
	}
	if len(keys) < 6 {
		t.Errorf("%d keys for 6 frames", len(keys))
	}
	wantText(t, m, text)
}

// respond starts a server that answers each connection with text, and keeps it open.
func respond(t *testing.T, text func(key string) string) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r, err := http.ReadRequest(bufio.NewReader(c))
			if err == nil {
				io.WriteString(c, text(r.Header.Get("Sec-Websocket-Key")))
				io.Copy(io.Discard, c)
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return "ws://" + l.Addr().String()
}

// switching is a valid answer, with extra headers.
func switching(headers string) func(string) string {
	return func(key string) string {
		return "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: " +
			acceptKey(key) + "\r\n" + headers + "\r\n"
	}
}

// both runs fn for the two ways to dial.
func both(t *testing.T, fn func(t *testing.T, dial func(ctx context.Context, url string, t *tls.Config) (io.Closer, error))) {
	t.Run("Conn", func(t *testing.T) {
		fn(t, func(ctx context.Context, url string, t *tls.Config) (io.Closer, error) {
			return Config{}.Dial(ctx, url, nil, t)
		})
	})
	t.Run("Carrier", func(t *testing.T) {
		fn(t, func(ctx context.Context, url string, t *tls.Config) (io.Closer, error) {
			return DialCarrier(ctx, url, nil, t)
		})
	})
}

func TestServerRefuses(t *testing.T) {
	both(t, func(t *testing.T, dial func(context.Context, string, *tls.Config) (io.Closer, error)) {
		for _, code := range []int{200, 301, 302, 308, 401, 403, 404, 426, 503} {
			followed := false
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				followed = followed || r.URL.Path != "/"
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(code)
			}))
			_, err := dial(t.Context(), "ws"+strings.TrimPrefix(server.URL, "http")+"/", nil)
			if status, ok := errors.AsType[*StatusError](err); !ok || status.Code != code || err.Error() != fmt.Sprint("HTTP ", code) {
				t.Errorf("%d: %v", code, err)
			}
			server.Close()
			if followed {
				t.Errorf("%d: redirect was followed", code)
			}
		}
	})
}

func TestHostileHandshake(t *testing.T) {
	both(t, func(t *testing.T, dial func(context.Context, string, *tls.Config) (io.Closer, error)) {
		tests := map[string]struct {
			text func(string) string
			want error
		}{
			"WrongKey":    {func(string) string { return switching("")("other") }, errNoWebSocket},
			"Extension":   {switching("Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n"), errExtension},
			"Subprotocol": {switching("Sec-WebSocket-Protocol: graphql\r\n"), errSubprotocol},
			"Twice":       {switching("Sec-WebSocket-Protocol: mcp\r\nSec-WebSocket-Protocol: mcp-proxy-link\r\n"), errSubprotocol},
			"Headers":     {switching(strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 300)), errLongGreeting},
			"OneHeader":   {switching("X: " + strings.Repeat("y", 300_000) + "\r\n"), errLongGreeting},
			"NoColon":     {switching("canary no colon\r\n"), nil},
			"BadLength":   {switching("Content-Length: canary\r\n"), nil},
			"NoHTTP":      {func(string) string { return "canary\r\n" }, nil},
			"Other":       {func(string) string { return "SSH-2.0-OpenSSH_9.9\r\n" }, nil},
		}
		for name, tt := range tests {
			c, err := dial(t.Context(), respond(t, tt.text), nil)
			if err == nil || tt.want != nil && !errors.Is(err, tt.want) || strings.Contains(err.Error(), "canary") {
				t.Errorf("%s: %v, want %v", name, err, tt.want)
			}
			if err == nil {
				c.Close()
			}
		}
	})
}

func TestServerThatHangs(t *testing.T) {
	both(t, func(t *testing.T, dial func(context.Context, string, *tls.Config) (io.Closer, error)) {
		asked := make(chan struct{}, 1)
		url := respond(t, func(string) string { asked <- struct{}{}; return "HTTP/1.1 101 " })
		ctx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("enough")
		conntest.During(t, func() {
			if _, err := dial(ctx, url, nil); !errors.Is(err, why) {
				t.Errorf("Dial returned %v, want the cause of ctx", err)
			}
		}, func() { <-asked; cancel(why) })
	})
}

func TestServerIsNotThere(t *testing.T) {
	both(t, func(t *testing.T, dial func(context.Context, string, *tls.Config) (io.Closer, error)) {
		if _, err := dial(t.Context(), "ws://127.0.0.1:1", nil); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("Dial returned %v", err)
		}
	})
}

func TestServerOfUnknownCA(t *testing.T) {
	both(t, func(t *testing.T, dial func(context.Context, string, *tls.Config) (io.Closer, error)) {
		s := newTLSServer(t, Config{})
		for _, config := range []*tls.Config{nil, {RootCAs: x509.NewCertPool()}} {
			_, err := dial(t.Context(), s.url, config)
			if _, ok := errors.AsType[x509.UnknownAuthorityError](err); !ok {
				t.Errorf("Dial returned %v", err)
			}
		}
	})
}

// A tls.Config that net/http has used offers HTTP/2 first.
func TestDialAsksForHTTP1(t *testing.T) {
	t.Parallel()
	s := newTLSServer(t, Config{})
	s.tls = s.tls.Clone()
	s.tls.NextProtos = []string{"h2", "http/1.1"}
	s.dialOurs(Config{})
	if want := []string{"h2", "http/1.1"}; !slices.Equal(s.tls.NextProtos, want) {
		t.Errorf("the caller's config now says %q", s.tls.NextProtos)
	}
}

// ctx is of the handshake alone.
func TestDialedConnOutlivesCtx(t *testing.T) {
	url, conns := newForeignServer(t, websocket.Upgrader{})
	ctx, cancel := context.WithCancel(t.Context())
	c, err := Config{}.Dial(ctx, url, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	server := conntest.Await(t, "upgraded connection", conns)
	defer server.Close()
	server.WriteMessage(websocket.TextMessage, []byte(`{"jsonrpc":"2.0","method":"a"}`))
	wantText(t, conntest.Recv(t, c), `{"jsonrpc":"2.0","method":"a"}`)
	conntest.During(t, func() { server.ReadMessage(); server.Close() }, func() { c.Close() })
}

func TestDialSendsHeaders(t *testing.T) {
	got := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		w.WriteHeader(http.StatusTeapot)
	}))
	defer server.Close()
	Config{}.Dial(t.Context(), "ws"+strings.TrimPrefix(server.URL, "http"), http.Header{"Authorization": {"Bearer x"}}, nil)
	h := conntest.Await(t, "request", got)
	if h.Get("Authorization") != "Bearer x" || h.Get("Sec-Websocket-Protocol") != "mcp" || h.Get("Sec-Websocket-Extensions") != "" {
		t.Errorf("headers %v", h)
	}
}

func TestDialThroughProxy(t *testing.T) {
	t.Parallel()
	s := newTLSServer(t, Config{})
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(s.url, "wss://"))
	connects.mu.Lock()
	connects.to, connects.asked = "127.0.0.1:"+port, nil
	connects.mu.Unlock()
	s.url = "wss://example.com:" + port // which the certificate names
	client, server := s.dialOurs(Config{})
	client.Send(jsonrpc.NewNotification("a", nil))
	wantText(t, conntest.Recv(t, server), `{"jsonrpc":"2.0","method":"a"}`)
	connects.mu.Lock()
	defer connects.mu.Unlock()
	if want := []string{"CONNECT example.com:" + port + " Basic dXNlcjpzZWNyZXQ="}; !slices.Equal(connects.asked, want) {
		t.Errorf("the proxy was asked for %q", connects.asked)
	}
}
