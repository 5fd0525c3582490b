package frontend

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

func note(method string) *jsonrpc.Message { return jsonrpc.NewNotification(method, nil) }

func related(m *jsonrpc.Message, id int64) *jsonrpc.Message {
	m.Related = jsonrpc.IntID(id)
	return m
}

func result(id int64) *jsonrpc.Message {
	return jsonrpc.NewResult(jsonrpc.IntID(id), []byte(`"done"`))
}

const call = `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{}}`

func TestNestedMessagesOnThePost(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-11-25")
	var ev *events
	conntest.During(t, func() { ev = newEvents(t, c.post(fmt.Sprintf(call, 1))) }, func() {
		conntest.Recv(t, conn)
		conn.Send(related(note("notifications/progress"), 1))
	})
	if got := ev.one(); got.LastEventID != "1-0" || got.Data != "" {
		t.Errorf("the first event is %+v, want the priming event 1-0", got)
	}
	first := ev.one()
	wantText(t, first.message(t), `{"jsonrpc":"2.0","method":"notifications/progress"}`)
	if first.LastEventID != "1-1" || first.Type != "message" {
		t.Errorf("event id %q, type %q", first.LastEventID, first.Type)
	}
	conn.Send(related(jsonrpc.NewRequest(jsonrpc.IntID(9), "sampling/createMessage", nil), 1))
	wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","id":9,"method":"sampling/createMessage"}`)
	wantStatus(t, c.post(`{"jsonrpc":"2.0","id":9,"result":{"role":"user"}}`), 202)
	wantText(t, conntest.Recv(t, conn), `{"jsonrpc":"2.0","id":9,"result":{"role":"user"}}`)
	conn.Send(result(1))
	wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","id":1,"result":"done"}`)
	ev.end()
}

func TestEventStreamHeaders(t *testing.T) {
	ts := newManualServer(t, nil)
	c, _ := ts.connectManual("2025-06-18")
	resp := c.get()
	for name, want := range map[string]string{
		"Content-Type": "text/event-stream", "Cache-Control": "no-cache, no-transform", "X-Accel-Buffering": "no",
	} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	wantRefusal(t, c.get("Accept", "application/json"), 406, -32600)
	wantRefusal(t, c.get("Mcp-Session-Id", ""), 400, -32600)
	wantRefusal(t, c.get("Mcp-Session-Id", "nobody"), 404, -32600)
	wantRefusal(t, c.get("MCP-Protocol-Version", "2"), 400, -32600)
}

// TestPriming reads the raw bytes, because only clients of 2025-11-25 understand them.
func TestPriming(t *testing.T) {
	ts := newManualServer(t, nil)
	c, _ := ts.connectManual("2025-11-25")
	buf := make([]byte, 100)
	n, _ := c.get().Body.Read(buf)
	if got, want := string(buf[:n]), "id: 0-0\nretry: 500\ndata:\n\n"; got != want {
		t.Errorf("priming event %q, want %q", got, want)
	}
	c, conn := ts.connectManual("2025-06-18")
	resp := c.get()
	conn.Send(note("notifications/x"))
	n, _ = resp.Body.Read(buf)
	if got, want := string(buf[:n]), "event: message\nid: 0-1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n"; got != want {
		t.Errorf("first bytes %q, want %q", got, want)
	}
}

func TestStandaloneStream(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-06-18")
	conn.Send(note("notifications/queued"))
	ev := newEvents(t, c.get())
	wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","method":"notifications/queued"}`)
	conn.Send(note("notifications/live"))
	wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","method":"notifications/live"}`)

	newer := newEvents(t, c.get()) // replaces the old one, and repeats nothing
	ev.end()
	conn.Send(note("notifications/newer"))
	wantText(t, newer.one().message(t), `{"jsonrpc":"2.0","method":"notifications/newer"}`)

	again := newEvents(t, c.get("Last-Event-ID", "0-1"))
	newer.end()
	if got := again.one(); got.LastEventID != "0-2" {
		t.Errorf("resuming after 0-1 begins with %s", got.LastEventID)
	}
	if got := again.one(); got.LastEventID != "0-3" {
		t.Errorf("then comes %s", got.LastEventID)
	}
	conn.Close()
	again.end()
	wantRefusal(t, c.get(), 404, -32600)
}

func TestLastEventIDRefused(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-11-25")
	conn.Send(note("notifications/x"))
	for _, id := range []string{"x", "0", "-", "0-", "-1", "0-2", "0--1", "-1-0", "1-0", "7-7", "00-0", "0-0x", "99999999999999999999-1"} {
		wantRefusal(t, c.get("Last-Event-ID", id), 400, -32600)
	}
	if ev := newEvents(t, c.get("Last-Event-ID", "0-0")); ev.one().LastEventID != "0-1" {
		t.Error("0-0 does not stand before the first event")
	}
}

// dropPost posts a call that becomes an event stream, reads its first n events
// and drops the connection. The call has the id 1. It returns the id of the last event.
func dropPost(t *testing.T, ts *testServer, c *testClient, n int) (lastID string) {
	t.Helper()
	resp := c.post(fmt.Sprintf(call, 1))
	ev := newEvents(t, resp)
	for range n {
		lastID = ev.one().LastEventID
	}
	resp.Body.Close()
	s := ts.only()
	conntest.Eventually(t, "the connection is detached", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.pending.Get(jsonrpc.IntID(1)).reader == nil
	})
	return lastID
}

// TestD27 drops the connection of a POST: the call continues, and Serve does not notice.
func TestD27_DropIsNotCancel(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-06-18")
	dropPost(t, ts, c, 0) // no event id reached the client
	conntest.Recv(t, conn)
	wantStatus(t, c.post(`{"jsonrpc":"2.0","method":"notifications/after"}`), 202)
	if m := conntest.Recv(t, conn); m.Method != "notifications/after" {
		t.Errorf("after the drop Serve received %s", m.Append(nil))
	}
	if err := conn.Send(related(note("notifications/progress"), 1)); err != nil {
		t.Errorf("Send to the dropped POST: %v", err)
	}
	question := related(jsonrpc.NewRequest(jsonrpc.IntID(9), "elicitation/create", nil), 1)
	if err := conn.Send(question); err != nil {
		t.Errorf("Send to the dropped POST: %v", err)
	}
	if err := conn.Send(result(1)); err != nil {
		t.Errorf("Send to the dropped POST: %v", err)
	}
	// The response is on no other stream, but the client still gets the question.
	ev := newEvents(t, c.get())
	wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","id":9,"method":"elicitation/create"}`)
	conntest.During(t, func() { wantText(t, onlyMessage(t, c.post(ping)), `{"jsonrpc":"2.0","id":1,"result":{}}`) }, func() {
		m := conntest.Recv(t, conn)
		conn.Send(jsonrpc.NewResult(m.ID, []byte("{}")))
	})
	conn.Close()
	ev.end()
}

// TestD28 resumes a dropped POST: it gets only that stream, only later events, and then live ones
// until the response.
func TestD28_Resume(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-11-25")
	standalone := newEvents(t, c.get())
	standalone.one()

	var lastID string
	conntest.During(t, func() { lastID = dropPost(t, ts, c, 2) }, func() {
		conntest.Recv(t, conn)
		conn.Send(related(note("notifications/first"), 1))
	})
	if lastID != "1-1" {
		t.Fatalf("last event id %s, want 1-1", lastID)
	}
	other := c.post(fmt.Sprintf(call, 2))
	conntest.Recv(t, conn)
	conn.Send(related(note("notifications/other"), 2))
	conn.Send(related(note("notifications/second"), 1))
	conn.Send(note("notifications/unrelated"))

	ev := newEvents(t, c.get("Last-Event-ID", lastID))
	if got := ev.one(); got.LastEventID != "1-2" || !strings.Contains(got.Data, "notifications/second") {
		t.Errorf("resumed with %+v, want the second notification", got)
	}
	conn.Send(related(note("notifications/third"), 1))
	if got := ev.one(); got.LastEventID != "1-3" {
		t.Errorf("then came %+v, want the third", got)
	}
	conn.Send(result(1))
	wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","id":1,"result":"done"}`)
	ev.end()

	again := newEvents(t, c.get("Last-Event-ID", "1-3")) // the response once more
	wantText(t, again.one().message(t), `{"jsonrpc":"2.0","id":1,"result":"done"}`)
	again.end()
	newEvents(t, c.get("Last-Event-ID", "1-4")).end()

	conn.Send(result(2))
	if all := newEvents(t, other).rest(); len(all) != 3 {
		t.Errorf("the other stream has %d events, want priming, notification, response", len(all))
	}
	if got := standalone.one(); !strings.Contains(got.Data, "notifications/unrelated") {
		t.Errorf("the standalone stream has %+v", got)
	}
}

func TestResponseStoredWhileAway(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-11-25")
	lastID := dropPost(t, ts, c, 1)
	conntest.Recv(t, conn)
	conn.Send(result(1))
	ev := newEvents(t, c.get("Last-Event-ID", lastID))
	wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","id":1,"result":"done"}`)
	ev.end()
}

// TestStoreIsBounded floods a session whose client does not read: the oldest events are dropped,
// and each question among them is answered.
func TestStoreIsBounded(t *testing.T) {
	ts := newManualServer(t, nil)
	c, conn := ts.connectManual("2025-06-18")
	const extra = 3
	for i := range extra {
		conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(int64(i)), "roots/list", nil))
	}
	for range storeEvents {
		conn.Send(note("notifications/x"))
	}
	for i := range extra {
		m := conntest.Recv(t, conn)
		wantText(t, m, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":%s}`, i, jsonrpc.Overloaded("").Raw()))
	}
	if got := ts.only().holds(); got.stored != storeEvents || got.dropped != extra {
		t.Errorf("%d events stored, %d dropped", got.stored, got.dropped)
	}
	ev := newEvents(t, c.get())
	if got, want := ev.one().LastEventID, fmt.Sprintf("0-%d", extra+1); got != want {
		t.Errorf("the first event is %s, want %s", got, want)
	}
}

func TestStoreIsBoundedInBytes(t *testing.T) {
	ts := newManualServer(t, nil)
	_, conn := ts.connectManual("2025-06-18")
	large := []byte(`"` + strings.Repeat("x", 1<<20) + `"`)
	for range 20 {
		conn.Send(jsonrpc.NewNotification("notifications/x", large))
	}
	if got := ts.only().holds(); got.bytes > storeBytes || got.stored != 3 {
		t.Errorf("%d bytes in %d events stored", got.bytes, got.stored)
	}
	conn.Send(jsonrpc.NewNotification("notifications/x", []byte(`"`+strings.Repeat("x", 2*storeBytes)+`"`)))
	if got := ts.only().holds(); got.stored != 1 {
		t.Errorf("%d events stored, want the newest, though it is too large", got.stored)
	}
}

// TestStreamsAreForgotten runs many streams to their end: the store bounds how many are kept.
func TestStreamsAreForgotten(t *testing.T) {
	t.Parallel()
	ts := newTestServer(t, func(h *HTTP) { h.Serve = untilDone(chatty) })
	c := ts.connect("2025-11-25")
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 100 {
				c.post(fmt.Sprintf(call, w*1000+i)).Body.Close()
			}
		})
	}
	wg.Wait()
	wantText(t, onlyMessage(t, c.post(fmt.Sprintf(call, 5))), `{"jsonrpc":"2.0","id":5,"result":{}}`)
	s := ts.only()
	conntest.Eventually(t, "no request is open", func() bool { return s.holds().open == 0 })
	if got := s.holds(); got.streams > storeEvents/2 || got.pending != 0 || got.stored > storeEvents {
		t.Errorf("remembered: %+v", got)
	}
}

// chatty serves a session that notifies before each response.
func chatty(c jsonrpc.Conn) error {
	for {
		m, err := c.Recv()
		if err != nil {
			return err
		}
		if reply := echoed(m); reply != nil {
			c.Send(&jsonrpc.Message{Method: "notifications/progress", Related: m.ID})
			c.Send(reply)
		}
	}
}

func TestPlainWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conns <-chan jsonrpc.Conn
		ts := newBubbleServer(t, func(h *HTTP) { conns = manual(h) })
		ts.conns = conns
		c, conn := ts.connectManual("2025-11-25")
		go func() {
			for {
				m, err := conn.Recv()
				if err != nil {
					return
				}
				delay, _ := jsonrpc.ParseID(m.Params[1 : len(m.Params)-1]) // [N]
				n, _ := delay.Int()
				time.Sleep(time.Duration(n) * time.Millisecond)
				conn.Send(jsonrpc.NewResult(m.ID, []byte("{}")))
			}
		}()
		for ms, want := range map[int]string{0: typeJSON, 49: typeJSON, 51: typeSSE} {
			resp := c.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"x","params":[%d]}`, ms))
			if got := resp.Header.Get("Content-Type"); got != want {
				t.Errorf("an answer after %d ms came as %s, want %s", ms, got, want)
			}
			wantText(t, onlyMessage(t, resp), `{"jsonrpc":"2.0","id":1,"result":{}}`)
		}
	})
}

func TestKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newBubbleServer(t, nil)
		c := ts.connect("2025-06-18")
		resp := c.get()
		began := time.Now()
		buf := make([]byte, 10)
		for i := range 3 {
			n, err := resp.Body.Read(buf)
			if string(buf[:n]) != ":\n\n" || err != nil {
				t.Errorf("read %q (%v), want a comment", buf[:n], err)
			}
			if got, want := time.Since(began), time.Duration(i+1)*keepAlive; got != want {
				t.Errorf("comment after %v, want %v", got, want)
			}
		}
		resp.Body.Close()
	})
}

// TestSlowReader uses a client that stops reading its stream: Send blocks for at most stall; then
// the stream counts as dropped, and can be resumed.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conns <-chan jsonrpc.Conn
		ts := newBubbleServer(t, func(h *HTTP) { conns = manual(h) })
		ts.conns = conns
		c, conn := ts.connectManual("2025-06-18")
		resp := c.get() // nobody reads its body
		began := time.Now()
		sent := 0
		for time.Since(began) == 0 {
			if err := conn.Send(note("notifications/x")); err != nil {
				t.Fatal(err)
			}
			sent++
		}
		if took := time.Since(began); took != stall {
			t.Errorf("Send waited %v, want %v", took, stall)
		}
		if sent < storeEvents || sent > 4*storeEvents {
			t.Errorf("%d messages were held for a client that does not read", sent)
		}
		s := ts.only()
		if s.out.standalone.reader != nil {
			t.Error("the stalled connection still carries the stream")
		}
		resp.Body.Close()
		ev := newEvents(t, c.get())
		conn.Send(note("notifications/last"))
		for !strings.Contains(ev.one().Data, "notifications/last") {
		}
		conn.Close()
		ev.end()
	})
}

func TestIdleSessionExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newBubbleServer(t, func(h *HTTP) { h.SessionIdle = time.Minute })
		c := ts.connect("2025-06-18")
		for range 5 {
			time.Sleep(59 * time.Second)
			wantStatus(t, c.post(ping), 200)
		}
		resp := c.get()
		go io.Copy(io.Discard, resp.Body)
		time.Sleep(time.Hour)
		wantStatus(t, c.post(ping), 200) // an open stream keeps the session
		resp.Body.Close()
		synctest.Wait()
		time.Sleep(time.Minute - 1)
		ts.only() // is still there
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		wantRefusal(t, c.post(ping), http.StatusNotFound, -32600)
	})
}

// TestSlowClient: a large response may take long, as long as each part of 256 KiB arrives in time.
func TestSlowClient(t *testing.T) {
	for name, tt := range map[string]struct {
		each time.Duration // for 64 KiB
		gets bool
	}{"slow": {stall / 5, true}, "too slow": {stall / 3, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newBubbleServer(t, nil).connect("2025-11-25")
				resp := c.post(`{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"` + strings.Repeat("x", 1<<20) + `"}}`)
				defer resp.Body.Close()
				part, got := make([]byte, 64<<10), 0
				var err error
				for err == nil {
					time.Sleep(tt.each)
					var n int
					n, err = io.ReadFull(resp.Body, part)
					got += n
				}
				if whole := got > 1<<20; whole != tt.gets {
					t.Errorf("got %d bytes: %v", got, err)
				}
			})
		})
	}
}

// What a stream has dropped is garbage, though its call goes on.
func TestDroppedEventsAreGarbage(t *testing.T) {
	for name, drop := range map[string]func(*httpSession, *reader){
		"cut":  func(s *httpSession, rd *reader) { s.out.cut(rd.st) },
		"lost": func(_ *httpSession, rd *reader) { rd.detach(false, false) },
		"written": func(s *httpSession, rd *reader) {
			rd.next(nil)
			rd.written()
			rd.next(nil)
			s.out.evictRead()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHTTPSession("x", caller{}, newBacklog(jsonrpc.Limits{}).join(identity.Principal{}))
			id := jsonrpc.IntID(1)
			rd, err := s.expect([]*jsonrpc.Message{jsonrpc.NewRequest(id, "tools/call", nil)}, false)
			if err != nil {
				t.Fatal(err)
			}
			s.out.number(rd.st)
			var sent []weak.Pointer[byte]
			for range 3 {
				m := jsonrpc.NewNotification("notifications/message", []byte(`{"data":"`+strings.Repeat("x", 1000)+`"}`))
				m.Related = id
				if err := s.Send(m); err != nil {
					t.Fatal(err)
				}
				sent = append(sent, weak.Make(&rd.st.events[len(rd.st.events)-1].data[0]))
			}
			drop(s, rd)
			runtime.GC()
			for i, p := range sent {
				if p.Value() != nil {
					t.Errorf("event %d is still in memory", i+1)
				}
			}
			runtime.KeepAlive(rd)
		})
	}
}
