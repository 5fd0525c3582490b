package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

const (
	closedInFlight = `{"code":-32000,"message":"Connection closed: this session is over","data":{"reason":"connection_closed","phase":"in_flight","retryable":false}}`
	closedNotSent  = `{"code":-32000,"message":"Connection closed: this session is over","data":{"reason":"connection_closed","phase":"not_sent","retryable":true}}`
	cancelledError = `{"code":-32800,"message":"Request cancelled"}`
)

func wantError(t *testing.T, m *jsonrpc.Message, id int, want string) {
	t.Helper()
	wantText(t, m, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":%s}`, id, want))
}

func wantRecvEnds(t *testing.T, conn jsonrpc.Conn, cause error) {
	t.Helper()
	if _, err := conntest.RecvOrEnd(t, conn); !errors.Is(err, jsonrpc.ErrClosed) || !errors.Is(err, cause) {
		t.Errorf("Recv returned %v, want an end because: %v", err, cause)
	}
	if err := conn.Send(note("notifications/late")); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Send after the end returned %v", err)
	}
}

// TestD35 deletes a session with calls in flight.
func TestD35_Delete(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-11-25")
	stream := newEvents(t, c.get())
	posts := []*http.Response{c.post(fmt.Sprintf(call, 1)), c.post(fmt.Sprintf(call, 2))}
	conntest.Recv(t, conn)
	conntest.Recv(t, conn)
	wantStatus(t, c.delete(), http.StatusNoContent)
	for i, resp := range posts {
		all := newEvents(t, resp).rest()
		if len(all) != 2 {
			t.Fatalf("POST %d got %d events, want priming and the error", i+1, len(all))
		}
		wantError(t, all[1].message(t), i+1, closedInFlight)
	}
	stream.one()
	stream.end()
	wantRecvEnds(t, conn, errDeleted)
	for _, resp := range []*http.Response{c.post(ping), c.get(), c.delete(), c.get("Last-Event-ID", "1-0")} {
		wantRefusal(t, resp, http.StatusNotFound, -32600)
	}
}

// TestDeleteAfterAccept deletes the session right after a notification was
// accepted: Serve still receives it.
func TestDeleteAfterAccept(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-11-25")
	wantStatus(t, c.post(`{"jsonrpc":"2.0","method":"notifications/last"}`), 202)
	wantStatus(t, c.delete(), http.StatusNoContent)
	if m := conntest.Recv(t, conn); m.Method != "notifications/last" {
		t.Errorf("received %s", m.Append(nil))
	}
	wantRecvEnds(t, conn, errDeleted)
}

// TestServeCloses ends the session by Serve: a request that Serve never received was not sent, one
// that it received was in flight.
func TestServeCloses(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-06-18")
	first := c.post(fmt.Sprintf(call, 1))
	conntest.Recv(t, conn)
	second := c.post(fmt.Sprintf(call, 2))
	conn.Close()
	wantError(t, onlyMessage(t, first), 1, closedInFlight)
	wantError(t, onlyMessage(t, second), 2, closedNotSent)
	if _, err := conn.Recv(); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Errorf("Recv after Close: %v", err)
	}
	wantRefusal(t, c.post(ping), http.StatusNotFound, -32600)
}

// TestD29 abandons a call and never returns: the session expires, Serve gets the end, and later
// requests are rejected.
func TestD29_NeverReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conns <-chan jsonrpc.Conn
		ts := newBubbleServer(t, func(h *HTTP) {
			conns = manual(h)
			h.SessionIdle = time.Minute
		})
		ts.conns = conns
		c, conn := ts.connectManual("2025-11-25")
		lastID := dropPost(t, ts, c, 1)
		conntest.Recv(t, conn)
		wait := time.Now()
		if _, err := conn.Recv(); !errors.Is(err, errIdle) {
			t.Errorf("Recv returned %v, want an end by idleness", err)
		}
		if took := time.Since(wait).Round(time.Second); took != time.Minute {
			t.Errorf("the session expired after %v", took)
		}
		wantRefusal(t, c.get("Last-Event-ID", lastID), http.StatusNotFound, -32600)
	})
}

// TestD18 cancels a request before its response: the POST ends, Serve gets the cancellation, and
// its late answer is dropped.
func TestD18_CancelFirst(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-11-25")
	resp := c.post(fmt.Sprintf(call, 1))
	conntest.Recv(t, conn)
	wantStatus(t, c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"x"}}`), 202)
	wantError(t, onlyMessage(t, resp), 1, cancelledError)
	wantText(t, conntest.Recv(t, conn), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"x"}}`)
	if err := conn.Send(result(1)); err != nil { // D19
		t.Errorf("Send of the late result: %v", err)
	}
	ev := newEvents(t, c.get())
	ev.one()
	conn.Close()
	ev.end() // the late result is nowhere
}

// TestD17 cancels after the response, D20 initialize, D22 an unknown request: all cancellations are
// passed on, and have no answer.
func TestD17_D20_D22_CancelChangesNothing(t *testing.T) {
	ts := newManualServer(t, nil)
	c := ts.at("/mcp")
	c.version = "2025-11-25"
	resp := c.post(strings.Replace(strings.Replace(initializeText, "%", c.version, 1), `"init"`, "1", 1))
	c.session = resp.Header.Get("Mcp-Session-Id") // an event stream: initialize takes longer
	conn := conntest.Await(t, "session", ts.conns)
	initialize := conntest.Recv(t, conn)
	for _, id := range []string{"1", "true", "null", "1.5", `"1"`, "99", "{}"} {
		wantStatus(t, c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+id+`}}`), 202)
		if m := conntest.Recv(t, conn); m.Method != "notifications/cancelled" {
			t.Errorf("received %s", m.Append(nil))
		}
	}
	conn.Send(initializeResult(initialize))
	if m := onlyMessage(t, resp); m.Result == nil {
		t.Errorf("initialize was answered with %s", m.Append(nil))
	}
	conntest.During(t, func() {
		wantText(t, onlyMessage(t, c.post(fmt.Sprintf(call, 2))), `{"jsonrpc":"2.0","id":2,"result":"done"}`)
	}, func() {
		conntest.Recv(t, conn)
		conn.Send(result(2))
	})
	wantStatus(t, c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`), 202)
}

// TestD17_D18_Race races a response against a cancellation: exactly one of them ends the POST.
func TestD17_D18_Race(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-11-25")
	for i := range 100 {
		var wg sync.WaitGroup
		answered := make(chan *http.Response, 1)
		wg.Go(func() { answered <- c.post(fmt.Sprintf(call, i)) })
		conntest.Recv(t, conn)
		wg.Go(func() { conn.Send(result(int64(i))) })
		wg.Go(func() {
			c.post(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, i)).Body.Close()
		})
		body, _ := io.ReadAll((<-answered).Body)
		text := string(body)
		if n := strings.Count(text, `"result":"done"`) + strings.Count(text, cancelledError); n != 1 {
			t.Fatalf("%d endings: %s", n, text)
		}
		conntest.Recv(t, conn)
		wg.Wait()
	}
}

// TestD45 drops, and then deletes, a session in the middle of a batch.
func TestD45_BatchClosedMidway(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-03-26")
	resp := c.post(`[` + fmt.Sprintf(call, 1) + `,` + fmt.Sprintf(call, 2) + `]`)
	conntest.Recv(t, conn)
	conntest.Recv(t, conn)
	conn.Send(result(2))
	ev := newEvents(t, resp)
	wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","id":2,"result":"done"}`)
	wantStatus(t, c.delete(), 204)
	wantError(t, ev.one().message(t), 1, closedInFlight) // one error for the unfinished element
	ev.end()
	wantRecvEnds(t, conn, errDeleted)
}

// TestD15 drains: open sessions continue, new ones get 503.
func TestD15_Drain(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-11-25")
	resp := c.post(fmt.Sprintf(call, 1))
	conntest.Recv(t, conn)
	stream := newEvents(t, c.get())
	stream.one()
	ts.Drain()

	wantStatus(t, ts.at("/healthz").get(), http.StatusServiceUnavailable)
	for _, refused := range []*http.Response{
		ts.at("/mcp").post("garbage, which is not even read"),
		ts.at("/sse").get(),
	} {
		if refused.Header.Get("Retry-After") == "" {
			t.Error("503 without Retry-After")
		}
		wantRefusal(t, refused, http.StatusServiceUnavailable, -32603)
	}
	conn.Send(result(1))
	wantText(t, onlyMessage(t, resp), `{"jsonrpc":"2.0","id":1,"result":"done"}`)
	second := c.post(fmt.Sprintf(call, 2)) // the proxy refuses it, not the front end
	conntest.Recv(t, conn)

	ts.HTTP.Close()
	wantError(t, onlyMessage(t, second), 2, closedInFlight)
	stream.end()
	wantRefusal(t, c.post(ping), http.StatusNotFound, -32600)
}

// TestCloseWaits checks that Close returns only after every Serve.
func TestCloseWaits(t *testing.T) {
	release := make(chan struct{})
	ended := make(chan struct{})
	ts := newTestServer(t, func(h *HTTP) {
		h.Serve = func(ctx context.Context, _ *identity.Identity, _ string, c jsonrpc.Conn) error {
			defer close(ended)
			m, _ := c.Recv()
			c.Send(initializeResult(m))
			<-ctx.Done()
			<-release
			return ctx.Err()
		}
	})
	ts.connect("2025-06-18")
	returned := make(chan struct{})
	go func() { ts.HTTP.Close(); close(returned) }()
	conntest.Eventually(t, "draining", ts.open.isDraining)
	close(release)
	conntest.Await(t, "return of Close", returned)
	select {
	case <-ended:
	default:
		t.Error("Close returned before Serve")
	}
}

func TestSessionCap(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) { h.Sessions = 2 })
	a := ts.connect("2025-06-18")
	sse := ts.at("/sse").get()
	newEvents(t, sse).one()
	full := ts.at("/mcp").post(strings.Replace(initializeText, "%", "2025-06-18", 1))
	if full.Header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
	wantRefusal(t, full, http.StatusServiceUnavailable, -32603)
	wantStatus(t, a.post(ping), 200)
	wantStatus(t, a.delete(), 204)
	conntest.Eventually(t, "there is room again", func() bool {
		open, _ := ts.connections()
		return open == 1
	})
	ts.connect("2025-06-18")
}

// TestInboundIsBounded uses a Serve that does not receive: POSTs wait, and one whose client leaves
// meanwhile is never sent.
func TestInboundIsBounded(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-06-18")
	for range inbound {
		wantStatus(t, c.post(`{"jsonrpc":"2.0","method":"notifications/x"}`), 202)
	}
	ctx, cancel := context.WithCancel(t.Context())
	req := c.request(http.MethodPost, fmt.Sprintf(call, 1)).WithContext(ctx)
	left := make(chan error, 1)
	go func() {
		_, err := c.http.Do(req)
		left <- err
	}()
	s := ts.only()
	waiting := func() bool { return s.holds().pending == 1 }
	conntest.Eventually(t, "the POST waits", waiting)
	cancel()
	if err := conntest.Await(t, "end of the POST", left); !errors.Is(err, context.Canceled) {
		t.Errorf("the POST did not wait: %v", err)
	}
	conntest.Eventually(t, "the POST is withdrawn", func() bool { return !waiting() })
	for range inbound {
		conntest.Recv(t, conn)
	}
	wantStatus(t, c.post(`{"jsonrpc":"2.0","method":"notifications/after"}`), 202)
	if m := conntest.Recv(t, conn); m.Method != "notifications/after" {
		t.Errorf("Serve got %s", m.Append(nil))
	}
}

// TestBadAnswer posts an unusable answer to a question: its sender gets an error.
func TestBadAnswer(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-06-18")
	wantRefusal(t, c.post(`{"jsonrpc":"2.0","id":3,"result":{},"error":{}}`), 400, -32600)
	if m := conntest.Recv(t, conn); m.Error == nil || m.ID != jsonrpc.IntID(3) {
		t.Errorf("Serve got %s, want an error for 3", m.Append(nil))
	}
}

// TestInitializeDropped drops the connection before the client knows the session's id: nobody can
// use the session, so it ends.
func TestInitializeDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conns <-chan jsonrpc.Conn
		ts := newBubbleServer(t, func(h *HTTP) { conns = manual(h) })
		c := ts.at("/mcp")
		ctx, cancel := context.WithCancel(t.Context())
		req := c.request(http.MethodPost, strings.Replace(initializeText, "%", "2025-11-25", 1)).WithContext(ctx)
		go func() {
			<-conns // initialize is on its way, and will not be answered
			cancel()
		}()
		if _, err := c.http.Do(req); !errors.Is(err, context.Canceled) {
			t.Errorf("initialize: %v", err)
		}
		time.Sleep(plainWait) // a POST notices it only then
		synctest.Wait()
		if _, sessions := ts.connections(); sessions != 0 {
			t.Error("the session is still there")
		}
	})
}

// TestChaos runs clients that call, cancel, drop, resume and delete at random: nothing hangs or
// stays behind.
func TestChaos(t *testing.T) {
	t.Parallel()
	ts := newTestServer(t, func(h *HTTP) { h.Serve = untilDone(chatty) })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { chaos(ts) })
	}
	wg.Wait()
	conntest.Eventually(t, "all sessions have ended", func() bool {
		open, sessions := ts.connections()
		return open == 0 && sessions == 0
	})
}

func chaos(ts *testServer) {
	for range 4 {
		c := ts.connect("2025-11-25")
		stream := c.get()
		var wg sync.WaitGroup
		for id := range 10 {
			wg.Go(func() {
				resp := c.post(fmt.Sprintf(call, id))
				if id%2 == 0 {
					resp.Body.Close()
					c.get("Last-Event-ID", fmt.Sprintf("%d-0", id)).Body.Close()
					return
				}
				c.post(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id)).Body.Close()
				io.Copy(io.Discard, resp.Body)
			})
		}
		if rand.IntN(3) > 0 {
			wg.Wait()
		}
		c.delete()
		wg.Wait()
		stream.Body.Close()
	}
}

// TestWithdrawReusedID withdraws a cancelled request whose id is in use again: the later request
// stays (race J).
func TestWithdrawReusedID(t *testing.T) {
	s := newHTTPSession("id", caller{who: identity.Nobody}, newBacklog(jsonrpc.Limits{}).join(identity.Nobody.Principal))
	messages := []*jsonrpc.Message{jsonrpc.NewRequest(jsonrpc.IntID(1), "x", nil)}
	first, _ := s.expect(messages, false)
	s.cancelledLocked(jsonrpc.NewNotification("notifications/cancelled", []byte(`{"requestId":1}`)))
	second, err := s.expect(messages, false)
	if err != nil {
		t.Fatal(err)
	}
	s.withdrawLocked(first, messages)
	if s.pending.Get(jsonrpc.IntID(1)) != second.st || second.st.owed != 1 {
		t.Error("the later request with the same id was withdrawn")
	}
}
