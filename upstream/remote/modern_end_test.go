package remote

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// cut ends a connection in the middle of a response.
func cut(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		c.Close()
	}
}

// TestD31_D33 loses answers on their way. What may have had effects is not posted
// again, what has none is, once, with an id that nobody waits for.
func TestD31_D33_LostAnswers(t *testing.T) {
	loss := map[string]func(w http.ResponseWriter){
		"stream ended": func(w http.ResponseWriter) {
			stream(w, "id: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n")
		},
		"connection lost": cut,
	}
	for cause, lose := range loss {
		for _, method := range []string{"tools/call", "prompts/get", "tasks/get", "x/y", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read", "completion/complete", "server/discover"} {
			t.Run(method+" "+cause, func(t *testing.T) {
				f := newFake(t)
				c := connectModern(t, f)
				ids := make(chan string, 8)
				always := method == "resources/read"
				f.handle(method, func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
					ids <- m.ID.String()
					if len(ids) > 1 && !always {
						reply(w, m, `{"again":1}`)
						return
					}
					lose(w)
				})
				c.request(5, method, params(`"name":"t","uri":"u","taskId":"t"`))
				m := c.recv()
				posts := 0
				for m.IsNotification() {
					m, posts = c.recv(), posts+1
				}
				switch {
				case !mcp.MethodOf(method).Safe:
					wantError(t, m, 5, jsonrpc.ReasonClosed, cause, jsonrpc.InFlight)
					if len(ids) != 1 {
						t.Errorf("posted %d times", len(ids))
					}
				case always:
					wantError(t, m, 5, jsonrpc.ReasonClosed, cause, jsonrpc.InFlight)
					if len(ids) != 2 {
						t.Errorf("posted %d times", len(ids))
					}
				default:
					wantResult(t, m, 5, `{"again":1}`)
					if first, second := <-ids, <-ids; first != "5" || second == "5" {
						t.Errorf("posted with the ids %s and %s", first, second)
					}
				}
				c.request(6, "ping", params(""))
				wantResult(t, c.recv(), 6, `{}`)
			})
		}
	}
}

// TestModernUnreachable gives each request its own error, and recovers.
func TestModernUnreachable(t *testing.T) {
	f := newFake(t)
	f.Close()
	s, l := server(t, f.URL)
	c := dialModern(t, s)
	for id, method := range []string{"tools/call", "tools/list", "subscriptions/listen"} {
		c.request(int64(id), method, params(`"name":"t"`))
		wantError(t, c.recv(), int64(id), jsonrpc.ReasonClosed, "connection refused", jsonrpc.NotSent)
	}
	c.close()
	if l.sum("requests to the upstream failed") != 1 {
		t.Errorf("the log is %s", l)
	}
}

// TestD32_ModernCancel closes the connection of a cancelled request at once,
// whatever it waits for. Nothing is answered, and nothing is posted.
func TestD32_ModernCancel(t *testing.T) {
	tests := []struct {
		name string
		do   func(w http.ResponseWriter)
	}{
		{"before the header", func(http.ResponseWriter) {}},
		{"in a stream", func(w http.ResponseWriter) { stream(w, ": x\n\n") }},
		{"in a body", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"jsonrpc":`)
			http.NewResponseController(w).Flush()
		}},
	}
	for _, tt := range tests {
		for _, method := range []string{"tools/call", "resources/read", "subscriptions/listen"} {
			t.Run(tt.name+" "+method, func(t *testing.T) {
				f := newFake(t)
				gone := make(chan struct{}, 1)
				f.handle(method, func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
					tt.do(w)
					block(r)
					gone <- struct{}{}
				})
				c := connectModern(t, f)
				c.request(5, method, params(`"name":"t"`))
				f.await(method, 1)
				c.cancel(5)
				conntest.Await(t, "end of the request", gone)
				c.cancel(5)
				c.cancel(99)
				c.notify("notifications/cancelled", `{"requestId":null}`)
				c.request(6, "x", params(""))
				wantResult(t, c.recv(), 6, `{}`)
				c.close()
				if got := strings.Join(f.all(), " "); got != "tools/list "+method+" x" {
					t.Errorf("posted %s", got)
				}
			})
		}
	}
}

// TestModernClose aborts what is in flight, which cancels it, but lets what ends a
// task out.
func TestModernClose(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		gone := make(chan struct{}, 2)
		wait := func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
			stream(w, ": x\n\n")
			block(r)
			gone <- struct{}{}
		}
		f.handle("tools/call", wait)
		f.handle("subscriptions/listen", wait)
		release, closed, done := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
		f.handle("tasks/cancel", func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
			select {
			case <-release:
			case <-r.Context().Done():
			}
			if r.Context().Err() != nil {
				t.Error("tasks/cancel was given up")
			}
			reply(w, m, `{}`)
			done <- struct{}{}
		})
		s, _ := modernServer(t, f)
		s.StopGrace = time.Minute
		c := dialModern(t, f.reach(s))
		c.request(1, "tools/call", params(`"name":"t"`))
		c.request(2, "subscriptions/listen", params(""))
		c.request(3, "tasks/cancel", params(`"taskId":"x"`))
		f.await("tools/call", 1)
		f.await("subscriptions/listen", 1)
		f.await("tasks/cancel", 1)
		conntest.During(t, func() {
			conntest.Await(t, "end of a request", gone)
			conntest.Await(t, "end of a request", gone)
			select {
			case <-closed:
				t.Error("Close did not wait for tasks/cancel")
			case <-time.After(100 * time.Millisecond):
			}
			close(release)
		}, func() {
			defer close(closed)
			c.close()
		})
		conntest.Await(t, "end of the task", done)
		if m, err := c.Recv(); err != jsonrpc.ErrClosed {
			t.Errorf("Recv: %v, %v", m, err)
		}
		if err := c.Send(jsonrpc.NewRequest(jsonrpc.IntID(9), "x", nil)); err == nil {
			t.Error("Send after Close succeeds")
		}
	})
}

// TestModernCloseForce does not wait for a server that does not answer.
func TestModernCloseForce(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.handle("tasks/cancel", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
		f.handle("notifications/x", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
		s, _ := modernServer(t, f)
		s.StopGrace = 50 * time.Millisecond
		c := dialModern(t, f.reach(s))
		c.request(3, "tasks/cancel", params(`"taskId":"x"`))
		c.notify("notifications/x", "{}")
		f.await("tasks/cancel", 1)
		f.await("notifications/x", 1)
		began := time.Now()
		c.close()
		if took := time.Since(began); took != s.StopGrace/2 {
			t.Errorf("Close took %v", took)
		}
	})
}

// TestModernHostStops ends the stream with the cause.
func TestModernHostStops(t *testing.T) {
	f := newFake(t)
	f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
	s, _ := modernServer(t, f)
	ctx, cancel := context.WithCancel(context.Background())
	conn, err := s.DialModern(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{conn, t}
	defer c.close()
	c.request(1, "tools/call", params(`"name":"t"`))
	f.await("tools/call", 1)
	cancel()
	if end := c.end(); end.Cause.String() != "host stopped" || !end.Delivered {
		t.Errorf("the end is %+v", end)
	}
}

// TestD32_ModernCancelHTTP2 resets the one stream, and leaves the connection to the
// others.
func TestD32_ModernCancelHTTP2(t *testing.T) {
	f := newFake(t)
	gone, conns := make(chan struct{}, 1), make(chan string, 3)
	f.handle("tools/call", func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
		stream(w, ": x\n\n")
		conns <- r.RemoteAddr
		block(r)
		gone <- struct{}{}
	})
	f.handle("x", func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
		conns <- r.RemoteAddr + r.Proto
		reply(w, m, `{}`)
	})
	secure := httptest.NewUnstartedServer(f)
	secure.EnableHTTP2 = true
	secure.StartTLS()
	defer secure.Close()
	s, _ := modernServer(t, f)
	s.URL, s.TLS = secure.URL, secure.Client().Transport.(*http.Transport).TLSClientConfig
	c := dialModern(t, s)
	defer c.close()
	c.request(1, "tools/call", params(`"name":"t"`))
	first := conntest.Await(t, "call", conns)
	c.cancel(1)
	conntest.Await(t, "end of the request", gone)
	c.request(2, "x", params(""))
	wantResult(t, c.recv(), 2, `{}`)
	if second := <-conns; second != first+"HTTP/2.0" {
		t.Errorf("first on %s, then on %s", first, second)
	}
}
