package frontend

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// TestUnread uses clients that do not read their responses: a response without room is replaced by
// an error, a small one is not, and reading or abandoning responses makes room again.
func TestUnread(t *testing.T) {
	t.Parallel()
	large := `{"x":"` + strings.Repeat("x", 32<<20) + `"}` // more than sockets hold
	const overloaded = `{"jsonrpc":"2.0","id":%d,"error":{"code":-32603,"message":"Too many unread messages","data":{"reason":"overloaded","phase":"in_flight","retryable":false}}}`
	few := func(h *HTTP) {
		h.init()
		h.open.backlog.limit = int64(len(large)) + largeBody // with what is small
	}
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			var ts *testServer
			var conn jsonrpc.Conn
			var request func(id int) *http.Request
			var c *testClient
			if era == "modern" {
				ts = newPrincipalServer(t, few)
				c = ts.at("/mcp")
				request = func(id int) *http.Request { return c.modern(fmt.Sprint(id), "x", "") }
			} else {
				ts = newManualServer(t, few)
				c, conn = ts.connectManual("2025-11-25")
				request = func(id int) *http.Request { return c.request(http.MethodPost, fmt.Sprintf(call, id)) }
			}
			ask := func(id int, result string) *http.Response {
				got := c.send(request(id))
				if conn == nil {
					conn = conntest.Await(t, "connection", ts.conns)
				}
				m := conntest.Recv(t, conn)
				conn.Send(jsonrpc.NewResult(m.ID, []byte(result)))
				return conntest.Await(t, "response", got)
			}
			first := ask(1, large)
			wantText(t, onlyMessage(t, ask(2, large)), fmt.Sprintf(overloaded, 2))
			wantText(t, onlyMessage(t, ask(3, `{}`)), `{"jsonrpc":"2.0","id":3,"result":{}}`)
			if n, err := io.Copy(io.Discard, first.Body); err != nil || n < int64(len(large)) {
				t.Errorf("read %d bytes: %v", n, err)
			}
			empty := func() bool { return ts.waiting() < largeBody }
			conntest.Eventually(t, "there is room", empty)
			ask(4, large).Body.Close() // it goes away
			conntest.Eventually(t, "there is room", empty)
			if n, _ := io.Copy(io.Discard, ask(5, large).Body); n < int64(len(large)) {
				t.Errorf("read %d bytes", n)
			}
		})
	}
}

// A principal that does not read takes no room from another, except when several together do.
func TestUnreadShares(t *testing.T) {
	u := newBacklog(jsonrpc.Limits{})
	who := func(i int) identity.Principal { return identity.Principal{Name: fmt.Sprint(i)} }
	of := make([]*streamBacklog, 10)
	for i := range of {
		of[i] = &streamBacklog{of: u.join(who(i)), cut: func() { t.Error("principal", i, "has lost a stream") }}
	}
	limit := int(u.limit)
	if !of[0].room(limit) {
		t.Error("one principal has less than all have together")
	}
	of[0].add(limit)
	if of[0].room(1) {
		t.Error("one principal has more than all have together")
	}
	for i := 1; i < 9; i++ {
		if !of[i].room(limit/8) || of[i].room(limit/8+1) {
			t.Errorf("principal %d has not an eighth", i)
		}
		of[i].add(limit / 8)
	}
	if of[9].room(1) {
		t.Error("there is room beyond what others may have")
	}
	of[0].add(-limit)
	if !of[9].room(limit/8) || u.join(who(1)) != of[1].of {
		t.Error("what was read is not free again, or a principal has two shares")
	}
	u.leave(who(1))
	for i := range of {
		u.leave(who(i))
	}
	if len(u.shares) > 0 {
		t.Error(len(u.shares), "shares of nobody")
	}
}

// TestUnreadNotifications: whatever the clients of a principal do not read, and on whatever
// transport, streams end beyond the share.
func TestUnreadNotifications(t *testing.T) {
	t.Parallel()
	const size, clients = 16 << 20, 6 // more than sockets hold
	params := []byte(`{"x":"` + strings.Repeat("x", size) + `"}`)
	note := jsonrpc.NewNotification("notifications/x", params)
	few := func(h *HTTP) {
		h.init()
		h.open.backlog.limit = 2*size + size/2
	}
	wantBound := func(t *testing.T, ts *testServer) {
		conntest.Eventually(t, "what waits is bounded", func() bool { return ts.open.backlog.bytes.Load() <= ts.open.backlog.limit })
		ts.cut()
	}
	for name, send := range map[string]func(t *testing.T, ts *testServer) error{
		"POST": func(t *testing.T, ts *testServer) error {
			c, conn := ts.connectManual("2025-11-25")
			c.send(c.request(http.MethodPost, fmt.Sprintf(call, 1)))
			return conn.Send(noted(conntest.Recv(t, conn), "notifications/x", string(params)))
		},
		"GET": func(_ *testing.T, ts *testServer) error {
			c, conn := ts.connectManual("2025-11-25")
			c.get()
			return conn.Send(note)
		},
		"stored": func(_ *testing.T, ts *testServer) error {
			_, conn := ts.connectManual("2025-11-25")
			return conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "roots/list", params))
		},
		"sse": func(t *testing.T, ts *testServer) error {
			ts.at("/sse").get()
			return conntest.Await(t, "a session", ts.conns).Send(note)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ts := newManualServer(t, few)
			for range clients {
				if err := send(t, ts); err != nil {
					t.Error(err)
				}
			}
			wantBound(t, ts)
		})
	}
	t.Run("modern", func(t *testing.T) {
		ts := newPrincipalServer(t, few)
		c := ts.at("/mcp")
		var conn jsonrpc.Conn
		for range clients {
			c.send(c.modern("1", "x", ""))
			if conn == nil {
				conn = conntest.Await(t, "a connection", ts.conns)
			}
			conn.Send(noted(recvRequest(t, conn), "notifications/x", string(params)))
		}
		wantBound(t, ts)
	})
	t.Run("WebSocket", func(t *testing.T) {
		ts := newManualServer(t, few)
		ended := make(chan error, clients)
		for range clients {
			dialWS(t, ts.wsURL("/ws"))
			conn := conntest.Await(t, "a session", ts.conns)
			go func() { ended <- conn.Send(note) }()
		}
		for range clients - 2 {
			if err := conntest.Await(t, "the end of a WebSocket", ended); err == nil {
				t.Error("somebody has read it")
			}
		}
		wantBound(t, ts)
	})
}

// recvRequest skips cancellations.
func recvRequest(t *testing.T, conn jsonrpc.Conn) *jsonrpc.Message {
	t.Helper()
	for {
		if m := conntest.Recv(t, conn); m.IsRequest() {
			return m
		}
	}
}

// TestUnreadInQueue: messages that wait for a WebSocket whose client does not read count, too.
func TestUnreadInQueue(t *testing.T) {
	ts := newManualServer(t, func(h *HTTP) {
		h.init()
		h.open.backlog.limit = 1 << 20
	})
	dialWS(t, ts.wsURL("/ws"))
	conn := conntest.Await(t, "a session", ts.conns)
	conn.(*endedConn).Conn.(interface{ Waits(bytes int) }).Waits(1<<20 + 1)
	if m, err := conn.Recv(); err == nil {
		t.Errorf("received %s", m.Append(nil))
	}
}

// A cut after a plain response was sent does not touch its connection, whose handler may have
// returned.
func TestCutAfterAPlainResponse(t *testing.T) {
	s := newHTTPSession("id", caller{who: identity.Nobody}, newBacklog(jsonrpc.Limits{}).join(identity.Nobody.Principal))
	m := jsonrpc.NewRequest(jsonrpc.IntID(1), "x", nil)
	rd, err := s.expect([]*jsonrpc.Message{m}, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(jsonrpc.NewResult(m.ID, []byte(`{"x":"`+strings.Repeat("x", 1<<20)+`"}`))); err != nil {
		t.Fatal(err)
	}
	out := newResponder(httptest.NewRecorder())
	if _, plain := rd.responses(out); !plain {
		t.Fatal("the response is not plain")
	}
	rd.wrotePlain()
	s.out.cut(rd.st)
	if out.aborted.Load() {
		t.Error("the connection of a response that is out was aborted")
	}
}

// A response without room on HTTP+SSE becomes an error, because its client waits for it.
func TestUnreadResponseOnSSE(t *testing.T) {
	ts := newManualServer(t, func(h *HTTP) {
		h.init()
		h.open.backlog.limit = 1 << 20
	})
	_, events := ts.asLegacy("")
	conn := conntest.Await(t, "a session", ts.conns)
	if err := conn.Send(jsonrpc.NewResult(jsonrpc.IntID(1), []byte(`{"x":"`+strings.Repeat("x", 2<<20)+`"}`))); err != nil {
		t.Fatal(err)
	}
	if got := string(events.one().Data); !strings.Contains(got, `"id":1,"error"`) {
		t.Errorf("the client got %.100s", got)
	}
}
