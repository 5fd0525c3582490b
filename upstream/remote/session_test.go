package remote

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestConversation(t *testing.T) {
	f := newFake(t)
	headers := make(chan http.Header, 10)
	f.any = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			headers <- r.Header.Clone()
		}
		return false
	}
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		stream(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\ndata: \"params\":{\"x\":1}}\n\n"+
			"event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"roots/list\"}\n\n"+sseResult(m, `{"done":true}`))
	})
	c := connect(t, f)
	c.request(1, "tools/list", `{}`)
	wantResult(t, c.recv(), 1, `{}`)
	c.request(2, "tools/call", `{"name":"x"}`)
	progress, question := c.recv(), c.recv()
	if progress.Method != "notifications/progress" || question.Method != "roots/list" {
		t.Errorf("got %s and %s", progress.Append(nil), question.Append(nil))
	}
	for _, m := range []*jsonrpc.Message{progress, question} {
		if m.Related != jsonrpc.IntID(2) {
			t.Errorf("%s is related to %q, want 2", m.Method, m.Related)
		}
	}
	wantResult(t, c.recv(), 2, `{"done":true}`)
	c.send(jsonrpc.NewResult(question.ID, raw(`{"roots":[]}`)))
	f.await(`response "q"`, 1)
	c.close()

	first, second := <-headers, <-headers
	if first.Get("Mcp-Session-Id") != "" || first.Get("Mcp-Protocol-Version") != "" {
		t.Errorf("initialize came with %v", first)
	}
	if second.Get("Mcp-Session-Id") != "session-1" || second.Get("Mcp-Protocol-Version") != "2025-11-25" {
		t.Errorf("initialized came with %v", second)
	}
	if got := second.Get("Accept"); got != "application/json, text/event-stream" || second.Get("User-Agent") != "mcp-proxy" || second.Get("Accept-Encoding") != "identity" {
		t.Errorf("initialized came with %v", second)
	}
	seen := slices.DeleteFunc(f.all(), func(s string) bool { return s == "GET" })
	want := []string{"initialize", "notifications/initialized", "tools/list", "tools/call", `response "q"`, "DELETE session-1"}
	if !slices.Equal(seen, want) {
		t.Errorf("server has seen %q, want %q", seen, want)
	}
}

func TestInitializedComesBeforeRequests(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		release := make(chan struct{})
		f.handle("notifications/initialized", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
			<-release
			f.note("accepted")
			w.WriteHeader(http.StatusAccepted)
		})
		c := connect(t, f)
		c.request(1, "tools/list", "")
		c.notify("notifications/roots/list_changed", "")
		f.await("notifications/initialized", 1)
		time.Sleep(50 * time.Millisecond) // in which what does not wait would arrive
		close(release)
		wantResult(t, c.recv(), 1, `{}`)
		f.await("notifications/roots/list_changed", 1)
		if seen := f.all(); slices.Index(seen, "accepted") > min(slices.Index(seen, "tools/list"), slices.Index(seen, "notifications/roots/list_changed")) {
			t.Errorf("server has seen %q", seen)
		}
	})
}

func TestNotificationsStayInOrder(t *testing.T) {
	f := newFake(t)
	order := make(chan string, 1000)
	f.handle("notifications/n", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		order <- string(m.Params)
		w.WriteHeader(http.StatusAccepted)
	})
	c := connect(t, f)
	for i := range 200 {
		c.notify("notifications/n", fmt.Sprintf(`{"n":%d}`, i))
	}
	for i := range 200 {
		if got, want := <-order, fmt.Sprintf(`{"n":%d}`, i); got != want {
			t.Fatalf("server received %s, want %s", got, want)
		}
	}
}

func TestRequestsAreConcurrent(t *testing.T) {
	f := newFake(t)
	const count = 50
	all, n := make(chan struct{}), make(chan struct{}, count)
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		if n <- struct{}{}; len(n) == count {
			close(all)
		}
		<-all
		reply(w, m, `{}`)
	})
	c := connect(t, f)
	for i := range count {
		c.request(int64(i+1), "tools/call", `{}`)
	}
	for range count {
		if m := c.recv(); m.Result == nil {
			t.Errorf("got %s", m.Append(nil))
		}
	}
}

func TestGetStream(t *testing.T) {
	f := newFake(t)
	gets := make(chan string, 10)
	f.get = func(w http.ResponseWriter, r *http.Request) {
		gets <- r.Header.Get("Last-Event-ID")
		if len(f.all()) > 0 && r.Header.Get("Last-Event-ID") == "" {
			stream(w, "id: 7\nretry: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n")
			return
		}
		stream(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/prompts/list_changed\"}\n\n")
		block(r)
	}
	c := connect(t, f)
	for _, want := range []string{"notifications/tools/list_changed", "notifications/prompts/list_changed"} {
		if m := c.recv(); m.Method != want || !m.Related.IsZero() {
			t.Errorf("got %s, related to %q; want %s", m.Append(nil), m.Related, want)
		}
	}
	if first, second := <-gets, <-gets; first != "" || second != "7" {
		t.Errorf("GETs came with Last-Event-ID %q and %q", first, second)
	}
}

func TestGetStreamThatFailsCostsNothing(t *testing.T) {
	for status, want := range map[int]int{404: 2, 405: 1, 401: 1, 500: 2, 200: 1} { // with one after initialized, if the server may have thought the first too early
		f := newFake(t)
		f.get = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
		c := connect(t, f)
		f.await("GET", 1)
		c.request(1, "ping", "")
		wantResult(t, c.recv(), 1, `{}`)
		c.close()
		if n := countOf(f.all(), "GET"); n != want {
			t.Errorf("status %d: %d GETs", status, n)
		}
	}
}

func TestBatchAnswer(t *testing.T) {
	f := newFake(t)
	f.handle("tools/list", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		fmt.Fprintf(w, `[1,{"jsonrpc":"2.0","method":"notifications/message","params":{}},{"jsonrpc":"2.0","id":%s,"result":{}}]`, m.ID)
	})
	c := connect(t, f)
	c.request(1, "tools/list", "")
	if m := c.recv(); m.Method != "notifications/message" || m.Related != jsonrpc.IntID(1) {
		t.Errorf("got %s", m.Append(nil))
	}
	wantResult(t, c.recv(), 1, `{}`)
}

func TestIDAsString(t *testing.T) {
	f := newFake(t)
	f.handle("tools/list", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":"%s","result":{}}`, m.ID)
	})
	c := connect(t, f)
	c.request(5, "tools/list", "")
	if m := c.recv(); m.Result == nil || m.ID.String() != `"5"` {
		t.Errorf("got %s", m.Append(nil))
	}
}

func TestD18_CancelFirst(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	gone := make(chan struct{})
	f.handle("tools/call", func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
		stream(w, ": open\n\n")
		block(r)
		close(gone)
	})
	c := connect(t, f)
	c.request(1, "tools/call", `{}`)
	f.await("tools/call", 1)
	c.cancel(1)
	f.await("notifications/cancelled", 1)
	<-gone // the stream is given up
	c.cancel(1)
	c.request(2, "ping", "")
	wantResult(t, c.recv(), 2, `{}`) // and 1 is not answered
	c.close()
	if n := strings.Count(strings.Join(f.all(), " "), "cancelled"); n != 1 {
		t.Errorf("%d cancellations, want 1", n)
	}
}

// D18: the server knows the call when the cancellation comes, though it works on two POSTs at once.
func TestCancelAfterTheServerAccepted(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.handle("tools/call", func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
			time.Sleep(acceptTime / 2)
			f.note("accepted")
			stream(w, ": open\n\n")
			block(r)
		})
		c := connect(t, f)
		c.request(1, "tools/call", `{}`)
		f.await("tools/call", 1)
		c.cancel(1)
		f.await("notifications/cancelled", 1)
		if all := f.all(); slices.Index(all, "accepted") > slices.Index(all, "notifications/cancelled") || !slices.Contains(all, "accepted") {
			t.Errorf("the server got %q", all)
		}
	})
}

// A server that answers with JSON accepts a call only with its answer. It has known an old call for long.
func TestCancelOfAnOldCall(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
		c := connect(t, f)
		c.request(1, "tools/call", `{}`)
		time.Sleep(acceptTime)
		c.cancel(1)
		synctest.Wait() // in which no time passes
		if all := f.all(); !slices.Contains(all, "notifications/cancelled") {
			t.Errorf("the server got %q", all)
		}
	})
}

func TestD19_LateResponse(t *testing.T) {
	f := newFake(t)
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		f.await("notifications/cancelled", 1)
		reply(w, m, `{"late":true}`)
	})
	release := make(chan struct{})
	f.handle("notifications/cancelled", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
		<-release
		w.WriteHeader(http.StatusAccepted)
	})
	c := connect(t, f)
	c.request(1, "tools/call", `{}`)
	f.await("tools/call", 1)
	c.cancel(1)
	f.await("notifications/cancelled", 1)
	c.request(2, "ping", "")
	wantResult(t, c.recv(), 2, `{}`)
	close(release)
	c.request(3, "ping", "")
	wantResult(t, c.recv(), 3, `{}`)
}

func TestCancelOfUnknownAndInitialize(t *testing.T) {
	f := newFake(t)
	release := make(chan struct{})
	f.handle("initialize", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		<-release
		reply(w, m, initResult)
	})
	s, _ := server(t, f.URL)
	c := dial(t, s)
	c.request(0, "initialize", initParams)
	c.cancel(0)
	c.cancel(99)
	c.notify("notifications/cancelled", `{"requestId":null}`)
	close(release)
	wantResult(t, c.recv(), 0, initResult)
	c.notify("notifications/initialized", "")
	c.request(1, "ping", "")
	wantResult(t, c.recv(), 1, `{}`)
	if slices.Contains(f.all(), "notifications/cancelled") {
		t.Errorf("server has seen %q", f.all())
	}
}

func TestD25_DuplicateID(t *testing.T) {
	f := newFake(t)
	release := make(chan struct{})
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		<-release
		reply(w, m, `{"first":true}`)
	})
	c := connect(t, f)
	c.request(1, "tools/call", `{}`)
	f.await("tools/call", 1)
	c.request(1, "ping", "")
	if m := c.recv(); !m.ID.IsZero() || !strings.Contains(string(m.Error), "-32600") {
		t.Errorf("the duplicate was answered with %s", m.Append(nil))
	}
	close(release)
	wantResult(t, c.recv(), 1, `{"first":true}`)
}

func TestMaxConcurrent(t *testing.T) {
	f := newFake(t)
	release := make(chan struct{})
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		<-release
		reply(w, m, `{}`)
	})
	s, _ := server(t, f.URL)
	s.MaxConcurrent = 2
	f.mu.Lock()
	f.live = ""
	f.mu.Unlock()
	f.handle("initialize", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) { reply(w, m, initResult) })
	a, b := shaken(t, s), shaken(t, s)
	a.request(1, "tools/call", `{}`)
	b.request(1, "tools/call", `{}`)
	f.await("tools/call", 2)
	a.request(2, "prompts/get", "")
	a.request(3, "prompts/get", "")
	within(t, "two that wait", func() { waiting(s, 2) })
	a.cancel(2)                              // leaves the queue
	a.notify("notifications/progress", `{}`) // does not count
	f.await("notifications/progress", 1)
	if seen := f.all(); slices.Contains(seen, "prompts/get") || slices.Contains(seen, "notifications/cancelled") {
		t.Errorf("server has seen %q", seen)
	}
	within(t, "one that waits", func() { waiting(s, 1) })
	close(release)
	got := []string{a.recv().ID.String(), a.recv().ID.String(), b.recv().ID.String()}
	if n := s.Waiting(); n != 0 {
		t.Errorf("%d wait at the end", n)
	}
	slices.Sort(got[:2])
	if !slices.Equal(got, []string{"1", "3", "1"}) {
		t.Errorf("answers to %q", got)
	}
	if n := strings.Count(strings.Join(f.all(), " "), "prompts/get"); n != 1 {
		t.Errorf("%d prompts/get, want 1", n)
	}
}

// waiting returns when so many requests wait for others.
func waiting(s *Server, n int) {
	for s.Waiting() != n {
		time.Sleep(time.Millisecond)
	}
}

func TestTooManyRequests(t *testing.T) {
	f := newFake(t)
	release := make(chan struct{})
	f.handle("initialize", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		<-release
		reply(w, m, initResult)
	})
	s, _ := server(t, f.URL)
	c := dial(t, s)
	c.request(0, "initialize", initParams)
	for i := range maxOpen {
		c.request(int64(i+1), "ping", "")
	}
	if m := c.recv(); !strings.Contains(string(m.Error), jsonrpc.ReasonOverloaded) || m.ID != jsonrpc.IntID(maxOpen) {
		t.Errorf("got %s", m.Append(nil))
	}
	close(release)
}

func TestConnectionsAreReused(t *testing.T) {
	f := newFake(t)
	conns := map[string]bool{}
	f.any = func(_ http.ResponseWriter, r *http.Request) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		conns[r.RemoteAddr] = true
		return false
	}
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) { stream(w, sseResult(m, `{}`)) })
	c := connect(t, f)
	f.await("GET", 1)
	for i := range 50 {
		c.request(int64(i+1), "tools/call", "")
		c.recv()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(conns) > 5 { // an answer may be read before its connection is free
		t.Errorf("%d connections", len(conns))
	}
}

func TestRefusedInitializePasses(t *testing.T) {
	f := newFake(t)
	f.handle("initialize", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		w.Write(jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: -32602, Message: "Unsupported protocol version"}).Append(nil))
	})
	s, _ := server(t, f.URL)
	c := dial(t, s)
	c.request(0, "initialize", initParams)
	if m := c.recv(); !strings.Contains(string(m.Error), "Unsupported") {
		t.Errorf("got %s", m.Append(nil))
	}
	if slices.Contains(f.all(), "GET") {
		t.Error("it was taken for a server of 2024-11-05")
	}
}

func TestWriteTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		release := make(chan struct{})
		f.any = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.ContentLength < 1<<20 {
				return false
			}
			<-release
			return true
		}
		defer close(release)
		s, _ := server(t, f.URL)
		s.WriteTimeout = 200 * time.Millisecond
		c := shaken(t, f.reach(s))
		c.request(1, "tools/call", `{"x":"`+strings.Repeat("x", 15<<20)+`"}`)
		wantError(t, c.recv(), 1, jsonrpc.ReasonClosed, "write timeout", jsonrpc.InFlight)
	})
}

// D05: one cancellation does not wait for another.
func TestCancellationsTogether(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	const calls = 10
	f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
	f.handle("notifications/cancelled", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
		f.await("notifications/cancelled", calls)
		w.WriteHeader(http.StatusAccepted)
	})
	c := connect(t, f)
	for id := range int64(calls) {
		c.request(id+1, "tools/call", `{}`)
	}
	f.await("tools/call", calls)
	for id := range int64(calls) {
		c.cancel(id + 1)
	}
	f.await("notifications/cancelled", calls)
}

// A server that takes no cancellations is not told of any number of them: what is
// behind them is not held up.
func TestCancellationsOfADeafServer(t *testing.T) {
	f := newFake(t)
	gone := make(chan struct{})
	f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
		block(r)
		close(gone)
	})
	c := connect(t, f)
	c.request(1, "tools/call", `{}`)
	f.await("tools/call", 1)
	cancels := c.Conn.(*serverSession).outbox
	cancels.deaf.Store(true)
	for range maxCancels {
		cancels.slots <- struct{}{}
	}
	c.cancel(1)
	<-gone
	c.notify("notifications/roots/list_changed", "")
	f.await("notifications/roots/list_changed", 1)
	if slices.Contains(f.all(), "notifications/cancelled") {
		t.Error("the server was told")
	}
}
