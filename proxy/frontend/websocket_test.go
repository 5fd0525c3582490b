package frontend

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

func dialWS(t *testing.T, url string) *websocket.Conn {
	t.Helper()
	client, resp, err := websocket.DefaultDialer.Dial(url, nil)
	if err != nil {
		t.Fatalf("dial: %v %v", resp, err)
	}
	t.Cleanup(func() { client.Close() })
	client.SetReadDeadline(time.Now().Add(conntest.Patience))
	return client
}

// wsURL returns the address of path for a WebSocket client.
func (ts *testServer) wsURL(path string) string {
	return "ws" + strings.TrimPrefix(ts.url, "http") + path
}

// exchange sends a request and checks the echo.
func exchange(t *testing.T, client *websocket.Conn) {
	t.Helper()
	client.WriteMessage(websocket.TextMessage, []byte(`{"jsonrpc":"2.0","id":"a","method":"x","params":{"n":1}}`))
	_, text, err := client.ReadMessage()
	if want := `{"jsonrpc":"2.0","id":"a","result":{"n":1}}`; err != nil || string(text) != want {
		t.Errorf("got %s, %v, want %s", text, err, want)
	}
}

func TestWebSocketPaths(t *testing.T) {
	ts := newTestServer(t, nil)
	for _, path := range []string{"/ws", "/ws/", "/ws/files"} {
		exchange(t, dialWS(t, ts.wsURL(path)))
	}
}

// wantNoUpgrade dials and wants that status instead.
func wantNoUpgrade(t *testing.T, url string, status int, header http.Header) *http.Response {
	t.Helper()
	client, resp, err := websocket.DefaultDialer.Dial(url, header)
	if err == nil {
		client.Close()
		t.Fatal("upgraded")
	}
	if !errors.Is(err, websocket.ErrBadHandshake) || resp.StatusCode != status {
		t.Errorf("got %v, %v, want status %d", resp, err, status)
	}
	return resp
}

func TestWebSocketRefusals(t *testing.T) {
	ts := newTestServer(t, nil)
	wantNoUpgrade(t, ts.wsURL("/ws/unknown"), http.StatusNotFound, nil)
	wantNoUpgrade(t, ts.wsURL("/ws"), http.StatusForbidden, http.Header{"Origin": {"https://evil.example"}})
	for method, status := range map[string]int{"GET": http.StatusBadRequest, "POST": http.StatusMethodNotAllowed} {
		req, _ := http.NewRequest(method, ts.url+"/ws", nil)
		resp, err := ts.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != status {
			t.Errorf("a plain %s gets %d, want %d", method, resp.StatusCode, status)
		}
		resp.Body.Close()
	}
	exchange(t, dialWS(t, ts.wsURL("/ws"))) // none of those kept its place
}

// Clients on WebSockets count like others, and free their place when they leave.
func TestWebSocketSessionCap(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) { h.Sessions = 1 })
	first := dialWS(t, ts.wsURL("/ws"))
	exchange(t, first)
	if resp := wantNoUpgrade(t, ts.wsURL("/ws"), http.StatusServiceUnavailable, nil); resp.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	first.Close()
	conntest.Eventually(t, "room again", func() bool {
		client, _, err := websocket.DefaultDialer.Dial(ts.wsURL("/ws"), nil)
		if err == nil {
			client.Close()
		}
		return err == nil
	})
}

// While the proxy drains no client is added. The others continue, and Close ends them with 1001.
func TestD15_WebSocketDrain(t *testing.T) {
	ts := newTestServer(t, nil)
	client := dialWS(t, ts.wsURL("/ws"))
	exchange(t, client)
	ts.Drain()
	wantNoUpgrade(t, ts.wsURL("/ws"), http.StatusServiceUnavailable, nil)
	exchange(t, client)
	conntest.During(t, func() {
		if _, text, err := client.ReadMessage(); !websocket.IsCloseError(err, 1001) {
			t.Errorf("client reads %s, %v, want close code 1001", text, err)
		}
		client.Close()
	}, ts.HTTP.Close)
}

// TestSilentWebSocketClient: a client is gone 40 s after its last byte, if a second Look 1 s later
// finds nothing either ([jsonrpc.Watchdog]). A client that answers pings stays.
func TestSilentWebSocketClient(t *testing.T) {
	for _, tt := range []struct {
		name string
		say  string // in one frame, at each of the moments
		at   []time.Duration
		gone time.Duration
	}{
		{"from the start", "", nil, 41 * time.Second},
		{"after a pong", "\x8a\x80\x00\x00\x00\x00", []time.Duration{20 * time.Second}, 61 * time.Second},
		{"after pongs", "\x8a\x80\x00\x00\x00\x00", []time.Duration{39 * time.Second, 78 * time.Second, 117 * time.Second}, 158 * time.Second},
		{"after a ping", "\x89\x80\x00\x00\x00\x00", []time.Duration{35 * time.Second}, 76 * time.Second},
		{"in a message", "\x81\x85\x00\x00\x00\x00{", []time.Duration{35 * time.Second}, 76 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := newBubbleServer(t, nil).upgrade()
				start := time.Now()
				for _, at := range tt.at {
					time.AfterFunc(at, func() { io.WriteString(conn, tt.say) })
				}
				io.Copy(io.Discard, conn)
				if gone := time.Since(start); gone != tt.gone {
					t.Errorf("gone after %v, want %v", gone, tt.gone)
				}
			})
		})
	}
}

// upgrade opens a WebSocket whose client is the test itself, so that nothing is answered
// automatically.
func (ts *testServer) upgrade(headers ...string) io.ReadWriteCloser {
	ts.t.Helper()
	conn, err := ts.client.Transport.(*http.Transport).DialContext(ts.t.Context(), "", "")
	if err != nil {
		ts.t.Fatal(err)
	}
	ts.t.Cleanup(func() { conn.Close() })
	go io.WriteString(conn, "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"+strings.Join(append(headers, "", ""), "\r\n"))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		ts.t.Fatalf("upgrade: %v, %v", resp, err)
	}
	return conn
}

// TestLargeFramesAreBounded: large messages on WebSockets have the slots and the time limit of
// large bodies.
func TestLargeFramesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newBubbleServer(t, nil)
		part := "\x81\xff\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00" + strings.Repeat(" ", 2*largeBody) // of a frame of 1 MiB
		start := time.Now()
		var slow []io.ReadWriteCloser
		closed := make(chan uint16)
		for range largeBodies {
			conn := ts.upgrade()
			go io.WriteString(conn, part)
			slow = append(slow, conn)
		}
		synctest.Wait()

		more := ts.upgrade()
		go io.WriteString(more, part)
		if code := closeCode(more); code != websocket.CloseTryAgainLater {
			t.Errorf("closed with %d", code)
		}
		if after := time.Since(start); after != largeWait {
			t.Errorf("refused after %v", after)
		}
		for _, conn := range slow {
			for at := 20 * time.Second; at < bodyTimeout; at += 20 * time.Second { // or they would be silent
				time.AfterFunc(at-largeWait, func() { io.WriteString(conn, " ") })
			}
			go func() { closed <- closeCode(conn) }()
		}
		if status := ts.postRaw(`{"jsonrpc":"2.0","method":"x","params":{"x":"` + strings.Repeat("x", 2*largeBody) + `"}}`); status != http.StatusServiceUnavailable {
			t.Errorf("a large body: status %d", status)
		}
		for range slow {
			if code := <-closed; code != websocket.ClosePolicyViolation {
				t.Errorf("closed with %d", code)
			}
			if after := time.Since(start); after != bodyTimeout {
				t.Errorf("given up after %v", after)
			}
		}
		synctest.Wait()
		if ts.open.slots.all != 0 {
			t.Errorf("%d places are taken", ts.open.slots.all)
		}
	})
}

// closeCode reads frames of a server up to a close frame, and returns its code; 0 if there is
// none.
func closeCode(conn io.Reader) uint16 {
	var head [4]byte
	for {
		if _, err := io.ReadFull(conn, head[:2]); err != nil {
			return 0
		}
		if head[0] == 0x88 { // else a ping
			io.ReadFull(conn, head[2:])
			return uint16(head[2])<<8 | uint16(head[3])
		}
	}
}
