package frontend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const modernClosed = `{"code":-32603,"message":"Connection closed: this session is over","data":{"reason":"connection_closed","phase":%q,"retryable":%v}}`

type connHolds struct{ queue, waiting, open int }

func (c *principalConn) holds() connHolds {
	c.mu.Lock()
	defer c.mu.Unlock()
	return connHolds{c.in.Len(), c.waiting.Len(), c.idle.open}
}

// onlyPrincipal returns the one principal's connection of ts, to look at what clients cannot see.
func (ts *testServer) onlyPrincipal() *principalConn {
	ts.t.Helper()
	modern := ts.streamable.modern
	modern.mu.Lock()
	defer modern.mu.Unlock()
	if open, _ := ts.connections(); len(modern.conns) != 1 || open != 1 {
		ts.t.Fatalf("%d connections of principals and %d open, want 1", len(modern.conns), open)
	}
	for _, c := range modern.conns {
		return c
	}
	return nil
}

// TestModernEnd: when Serve closes, received requests were in flight, the others not sent; the next
// POST gets a new conn after the old one has ended.
func TestModernEnd(t *testing.T) {
	ts := newPrincipalServer(t, nil)
	c := ts.at("/mcp")
	first := c.send(c.modern("1", "x", ""))
	conn := conntest.Await(t, "connection", ts.conns)
	conntest.Recv(t, conn)
	second := c.send(c.modern("2", "x", ""))
	pc := ts.onlyPrincipal()
	conntest.Eventually(t, "the request waits", func() bool { return pc.holds().queue == 1 })
	conn.Close()
	wantText(t, onlyMessage(t, conntest.Await(t, "response", first)), `{"jsonrpc":"2.0","id":1,"error":`+fmt.Sprintf(modernClosed, "in_flight", false)+`}`)
	wantText(t, onlyMessage(t, conntest.Await(t, "response", second)), `{"jsonrpc":"2.0","id":2,"error":`+fmt.Sprintf(modernClosed, "not_sent", true)+`}`)
	if err := conn.Send(note("x")); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Send after the end: %v", err)
	}
	third := c.send(c.modern("3", "x", ""))
	conntest.Eventually(t, "it waits for the end", func() bool { return len(third) == 0 && pc.holds().open == 0 })
	if len(ts.conns) > 0 {
		t.Fatal("there are two conns")
	}
	wantRecvEnds(t, conn, errServed) // and with it, ServePrincipal
	next := conntest.Await(t, "another connection", ts.conns)
	m := conntest.Recv(t, next)
	next.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{}`)))
	wantText(t, onlyMessage(t, conntest.Await(t, "response", third)), `{"jsonrpc":"2.0","id":3,"result":{}}`)
}

// TestModernEndsAtOnce: a Serve that refuses costs each POST one error, without endless retries.
func TestModernEndsAtOnce(t *testing.T) {
	served := make(chan struct{}, 16)
	ts := newTestServer(t, func(h *HTTP) {
		h.Sessions = 1
		h.ServePrincipal = func(_ context.Context, _ identity.Principal, _ string, c jsonrpc.Conn) error {
			served <- struct{}{}
			c.Close()
			return jsonrpc.ErrClosed
		}
	})
	c := ts.at("/mcp")
	for range 5 {
		wantBody(t, c.do(c.modern("1", "x", "")), 200, `{"jsonrpc":"2.0","id":1,"error":`+fmt.Sprintf(modernClosed, "not_sent", true)+`}`)
	}
	if n := len(served); n != 5 {
		t.Errorf("served %d times, want 5", n)
	}
}

// TestModernPaths: each path and each principal has its own conn.
func TestModernPaths(t *testing.T) {
	ts := newPrincipalServer(t, func(h *HTTP) { h.Sessions = 2 })
	all, files := ts.at("/mcp"), ts.at("/mcp/files")
	all.send(all.modern("1", "x", ""))
	conn := conntest.Await(t, "connection", ts.conns)
	conntest.Recv(t, conn)
	files.send(files.modern("1", "x", ""))
	conntest.Recv(t, conntest.Await(t, "another connection", ts.conns))
	all.send(all.modern("1", "x", ""))
	conntest.Recv(t, conn)
	wantRefusal(t, all.post(strings.Replace(initializeText, "%", "2025-11-25", 1)), 503, -32603)
}

// TestModernIdle: a conn ends if no POST was open for a while, not earlier.
func TestModernIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conns <-chan jsonrpc.Conn
		ts := newBubbleServer(t, func(h *HTTP) {
			conns = manualPrincipal(h)
			h.SessionIdle = time.Minute
		})
		c := ts.at("/mcp")
		got, ended := c.send(c.modern("1", mcp.MethodListen, "")), make(chan *jsonrpc.Message)
		conn := <-conns
		m := conntest.Recv(t, conn)
		go func() { ended <- onlyMessage(t, <-got) }()
		time.Sleep(time.Hour)
		conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{}`)))
		<-ended
		start := time.Now()
		if _, err := conn.Recv(); !errors.Is(err, errIdle) {
			t.Errorf("Recv returned %v", err)
		}
		if took := time.Since(start); took < time.Minute || took > time.Minute+keepAlive {
			t.Errorf("expired after %v", took)
		}
		c.send(c.modern("2", "x", ""))
		conntest.Recv(t, <-conns)
	})
}

// TestModernDrain: open requests continue, new ones are refused, and Close answers those that are
// left.
func TestModernDrain(t *testing.T) {
	ts := newPrincipalServer(t, nil)
	c := ts.at("/mcp")
	first := c.send(c.modern("1", "x", ""))
	conn := conntest.Await(t, "connection", ts.conns)
	m := conntest.Recv(t, conn)
	second := c.send(c.modern("2", "x", ""))
	conntest.Recv(t, conn)
	ts.Drain()
	wantRefusal(t, c.do(c.modern("3", "x", "")), 503, -32603)
	conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{}`)))
	wantText(t, onlyMessage(t, conntest.Await(t, "response", first)), `{"jsonrpc":"2.0","id":1,"result":{}}`)
	ts.HTTP.Close()
	wantText(t, onlyMessage(t, conntest.Await(t, "response", second)), `{"jsonrpc":"2.0","id":2,"error":`+fmt.Sprintf(modernClosed, "in_flight", false)+`}`)
	wantRefusal(t, c.do(c.modern("4", "x", "")), 503, -32603)
}

// TestModernPrincipal: all clients with the token are one principal, different from clients without
// one.
func TestModernPrincipal(t *testing.T) {
	for token, want := range map[string]string{"": "anonymous", "secret": "token:default"} {
		principals := make(chan string, 4)
		ts := newTestServer(t, func(h *HTTP) {
			if token != "" {
				h.Guard.Clients = secret(token)
			}
			h.ServePrincipal = func(ctx context.Context, who identity.Principal, _ string, c jsonrpc.Conn) error {
				principals <- who.String()
				return untilDone(unknown)(ctx, identity.Nobody, "", c)
			}
		})
		c := ts.at("/mcp")
		for range 2 {
			wantStatus(t, c.do(c.modern("1", "x", "", "Authorization", "Bearer secret")), 404)
		}
		if got := <-principals; got != want || len(principals) > 0 {
			t.Errorf("with token %q: %q, want %q once", token, got, want)
		}
	}
}
