package remote

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// TestD34_IdleSession finds out by its GET stream that the server has forgotten
// it.
func TestD34_IdleSession(t *testing.T) {
	f := newFake(t)
	var gets atomic.Int64
	f.get = func(w http.ResponseWriter, r *http.Request) {
		if gets.Add(1); r.Header.Get("Mcp-Session-Id") == "session-2" {
			stream(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n")
			block(r)
		} else if gets.Load() > 1 {
			w.WriteHeader(http.StatusNotFound)
		} else {
			stream(w, "retry: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n")
		}
	}
	c := connect(t, f)
	var got []string
	for range 4 {
		got = append(got, c.recv().Method)
	}
	want := []string{"notifications/x", "notifications/tools/list_changed", "notifications/resources/list_changed", "notifications/x"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	c.close()
	if n := strings.Count(strings.Join(f.all(), " "), "notifications/initialized"); n != 2 {
		t.Errorf("server has seen %q", f.all())
	}
}

// TestD34_LateNotFound has a request hear of the loss when the new session is
// there already.
func TestD34_LateNotFound(t *testing.T) {
	f := newFake(t)
	held := make(chan struct{})
	f.any = func(w http.ResponseWriter, r *http.Request) bool {
		if r.ContentLength > 200 && r.Header.Get("Mcp-Session-Id") == "session-1" {
			f.note("held")
			<-held
			w.WriteHeader(404)
			return true
		}
		return false
	}
	c := connect(t, f)
	f.await("notifications/initialized", 1)
	c.request(1, "tools/call", `{"pad":"`+strings.Repeat("x", 300)+`"}`)
	f.await("held", 1)
	f.forget()
	c.request(2, "ping", "")
	for m := c.recv(); m.ID != jsonrpc.IntID(2); m = c.recv() {
	}
	close(held)
	for m := c.recv(); ; m = c.recv() {
		if m.ID == jsonrpc.IntID(1) {
			wantResult(t, m, 1, `{}`)
			break
		}
	}
	if seen := strings.Join(f.all(), " "); strings.Count(seen, "initialize ") != 2 {
		t.Errorf("server has seen %s", seen)
	}
}

// TestD34_SilentCall waits for a response that the lost session will not give.
func TestD34_SilentCall(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
	c := connect(t, f)
	c.request(1, "tools/call", "")
	f.await("tools/call", 1)
	f.forget()
	c.request(2, "ping", "")
	lost := false
	for range 4 {
		switch m := c.recv(); m.ID {
		case jsonrpc.IntID(1):
			wantError(t, m, 1, closed, "HTTP 404", jsonrpc.InFlight)
			lost = true
		case jsonrpc.IntID(2):
			wantResult(t, m, 2, `{}`)
		}
	}
	if !lost {
		t.Error("1 has no answer")
	}
}

// TestD34_OneEvent loses calls whose response has begun at once, and silent ones a second later: that is one
// event, and one line of the log.
func TestD34_OneEvent(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.handle("tools/call", func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
		if m.ID == jsonrpc.IntID(1) {
			stream(w, ": begun\n\n")
		}
		block(r)
	})
	s, l := server(t, f.URL)
	c := shaken(t, s)
	const count = 10
	for i := range count {
		c.request(int64(i+1), "tools/call", "")
		f.await("tools/call", i+1)
	}
	f.forget()
	c.request(99, "ping", "")
	events := map[string]bool{}
	for lost := 0; lost < count; {
		if m := c.recv(); m.Error != nil {
			id, _ := m.ID.Int()
			wantError(t, m, id, closed, "HTTP 404", jsonrpc.InFlight)
			events[string(jsonrpc.Get(jsonrpc.Get(m.Error, "data"), "event"))] = true
			lost++
		}
	}
	c.close()
	if len(events) != 1 {
		t.Errorf("%d calls have the events %v", count, events)
	}
	if l.sum("requests to the upstream failed") != 1 || !strings.Contains(l.String(), "requests=10") {
		t.Errorf("the log is %s", l)
	}
}

func TestD34_WithoutSession(t *testing.T) {
	f := newFake(t)
	f.handle("initialize", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) { reply(w, m, initResult) })
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) { w.WriteHeader(404) })
	c := connect(t, f)
	c.request(1, "tools/call", "")
	wantError(t, c.recv(), 1, closed, "HTTP 404", jsonrpc.InFlight)
	c.close()
	if seen := strings.Join(f.all(), " "); strings.Count(seen, "initialize ") != 1 || strings.Contains(seen, "DELETE") {
		t.Errorf("server has seen %s", seen)
	}
}

func TestD23_ProgressAfterTheResponse(t *testing.T) {
	f := newFake(t)
	f.handle("tools/call", func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
		stream(w, sseResult(m, `{}`)+"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n"+sseResult(m, `{"second":true}`))
	})
	c := connect(t, f)
	for i := range 5 {
		c.request(int64(i+1), "tools/call", "")
		wantResult(t, c.recv(), int64(i+1), `{}`)
	}
}

// TestCancelDuringRenewal has a request that the old session did not run.
func TestCancelDuringRenewal(t *testing.T) {
	f := newFake(t)
	c := connect(t, f)
	c.request(1, "ping", "")
	wantResult(t, c.recv(), 1, `{}`)
	f.forget()
	release := make(chan struct{})
	f.handle("initialize", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		<-release
		w.Header().Set("Mcp-Session-Id", f.bear())
		reply(w, m, initResult)
	})
	c.request(2, "tools/call", "")
	f.await("initialize", 2)
	c.cancel(2)
	close(release)
	c.request(3, "ping", "")
	for m := c.recv(); m.Result == nil; m = c.recv() {
		if m.Error != nil {
			t.Errorf("got %s", m.Append(nil))
		}
	}
	c.close()
	if slices.Contains(f.all(), "tools/call") {
		t.Error("the cancelled request was sent again")
	}
}

// TestCloseDuringRenewal must not wait for the server.
func TestCloseDuringRenewal(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	c := connect(t, f)
	c.request(1, "ping", "")
	wantResult(t, c.recv(), 1, `{}`)
	f.handle("initialize", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
	f.forget()
	c.request(2, "ping", "")
	f.await("initialize", 2)
	c.close()
}

func TestD34_ForgottenSession(t *testing.T) {
	f := newFake(t)
	f.handle("tools/call", func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
		if string(m.Params) == `{"stay":1}` {
			stream(w, "data: {\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"roots/list\"}\n\n")
			block(r)
			return
		}
		reply(w, m, `{"ran":true}`)
	})
	c := connect(t, f)
	c.request(1, "logging/setLevel", `{"level":"debug"}`)
	wantResult(t, c.recv(), 1, `{}`)
	for i, method := range []string{"resources/subscribe", "resources/subscribe", "resources/unsubscribe"} {
		c.request(2, method, fmt.Sprintf(`{"uri":"x:%d"}`, i%2))
		wantResult(t, c.recv(), 2, `{}`)
	}
	c.request(3, "tools/call", `{"stay":1}`)
	question := c.recv()
	before := len(f.all())
	f.forget()
	const count = 10
	for i := range count {
		c.request(int64(10+i), "tools/call", `{}`)
	}
	answers := map[string]int{}
	for range count + 5 {
		switch m := c.recv(); {
		case m.Result != nil:
			answers[string(m.Result)]++
		case m.Error != nil:
			wantError(t, m, 3, closed, "HTTP 404", jsonrpc.InFlight)
			answers["lost"]++
		case m.Method == "notifications/resources/updated":
			answers[m.Method+string(m.Params)]++
		default:
			answers[m.Method]++
		}
	}
	if answers[`{"ran":true}`] != count || answers[`notifications/resources/updated{"uri":"x:1"}`] != 1 || answers["lost"] != 1 || answers["notifications/cancelled"] != 1 ||
		answers["notifications/tools/list_changed"] != 1 || answers["notifications/resources/list_changed"] != 1 {
		t.Errorf("answers %v", answers)
	}
	c.send(jsonrpc.NewResult(question.ID, raw(`{}`))) // to nobody
	c.request(30, "ping", "")
	wantResult(t, c.recv(), 30, `{}`)
	c.close()
	seen := slices.DeleteFunc(f.all()[before:], func(s string) bool { return strings.HasPrefix(s, "404") || s == "GET" || s == "tools/call" })
	slices.Sort(seen[2:4]) // which are sent at once
	want := []string{"initialize", "notifications/initialized", "logging/setLevel", "resources/subscribe", "ping", "DELETE session-2"}
	if !slices.Equal(seen, want) {
		t.Errorf("server has seen %q, want %q", seen, want)
	}
}

// The calls of a client do not wait for one subscription after the other.
func TestD34_ManySubscriptions(t *testing.T) {
	f := newFake(t)
	c := connect(t, f)
	const count = 20
	for i := range count {
		c.request(int64(i), "resources/subscribe", fmt.Sprintf(`{"uri":"x:%d"}`, i))
		wantResult(t, c.recv(), int64(i), `{}`)
	}
	several := make(chan struct{}) // closed when a second one has come
	var open atomic.Int32
	f.handle("resources/subscribe", func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
		if open.Add(1) == 2 {
			close(several)
		}
		select {
		case <-several:
			reply(w, m, `{}`)
		case <-r.Context().Done():
		}
	})
	f.forget()
	c.request(30, "ping", "")
	updated := 0
	for m := c.recv(); !m.IsResponse(); m = c.recv() {
		if m.Method == "notifications/resources/updated" {
			updated++
		}
	}
	if updated != count {
		t.Errorf("%d resources may have changed, want %d", updated, count)
	}
	c.close()
}

func TestD34_NoLoop(t *testing.T) {
	f := newFake(t)
	s, l := server(t, f.URL)
	c := shaken(t, s)
	c.request(1, "ping", "")
	wantResult(t, c.recv(), 1, `{}`)
	f.handle("initialize", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		w.Header().Set("Mcp-Session-Id", "useless")
		reply(w, m, initResult)
	})
	f.forget()
	c.request(2, "ping", "")
	for m := c.recv(); ; m = c.recv() {
		if m.Method == "" {
			wantError(t, m, 2, closed, "HTTP 404", jsonrpc.InFlight)
			break
		}
	}
	f.handle("initialize", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) { w.WriteHeader(503) })
	c.request(3, "ping", "")
	for m := c.recv(); ; m = c.recv() {
		if m.Method == "" {
			wantError(t, m, 3, closed, "HTTP 404", jsonrpc.InFlight)
			break
		}
	}
	c.close()
	if n := strings.Count(strings.Join(f.all(), " "), "initialize "); n != 3 {
		t.Errorf("server has seen %q", f.all())
	}
	if l.sum("level=WARN") > 2 {
		t.Errorf("the log is %s", l)
	}
}

// TestD34_BadRequest has a server that says with a 400 that it does not know the
// session: a new one is made, once. Another 400 is an answer.
func TestD34_BadRequest(t *testing.T) {
	const unknown, other = "Bad Request: No valid session ID provided", "Bad Request: no"
	for _, row := range []struct {
		says   map[string]string // by session
		code   int               // of the error in JSON; zero: as text
		want   string            // in the answer
		births int
	}{
		{map[string]string{"session-1": unknown}, -32000, `"result":{}`, 2},
		{map[string]string{"session-1": unknown, "session-2": unknown}, -32000, unknown, 2},
		{map[string]string{"session-1": other}, -32000, other, 1},
		{map[string]string{"session-1": unknown}, -32600, `"result":{}`, 2},
		{map[string]string{"session-1": unknown}, 0, `"result":{}`, 2}, // the Python SDK before 1.26
		{map[string]string{"session-1": unknown, "session-2": unknown}, 0, "HTTP 400", 2},
		{map[string]string{"session-1": other}, 0, "HTTP 400", 1},
	} {
		f := newFake(t)
		f.any = func(w http.ResponseWriter, r *http.Request) bool {
			text := row.says[r.Header.Get("Mcp-Session-Id")]
			if text == "" || r.ContentLength < 300 {
				return false
			}
			if row.code == 0 {
				http.Error(w, text, http.StatusBadRequest)
				return true
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			id := map[int]string{-32000: `null`, -32600: `"server-error"`}[row.code]
			fmt.Fprintf(w, `{"jsonrpc":"2.0","error":{"code":%d,"message":%q},"id":%s}`, row.code, text, id)
			return true
		}
		c := connect(t, f)
		c.request(1, "tools/call", `{"pad":"`+strings.Repeat("x", 300)+`"}`)
		m := c.recv()
		for ; m.IsNotification(); m = c.recv() {
		}
		if got := string(m.Append(nil)); m.ID != jsonrpc.IntID(1) || !strings.Contains(got, row.want) {
			t.Errorf("got %s, want %s", got, row.want)
		}
		c.close()
		if seen := strings.Join(f.all(), " "); strings.Count(seen, "initialize ") != row.births {
			t.Errorf("server has seen %s", seen)
		}
	}
}

// TestD34_UnknownMethod: a 404 with the answer to the request is that answer, and the session goes on.
func TestD34_UnknownMethod(t *testing.T) {
	f := newFake(t)
	f.any = func(w http.ResponseWriter, r *http.Request) bool {
		if r.ContentLength < 300 {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no such method"}}`)
		return true
	}
	c := connect(t, f)
	c.request(1, "acme/unknown", `{"pad":"`+strings.Repeat("x", 300)+`"}`)
	if m := c.recv(); !strings.Contains(string(m.Error), "no such method") {
		t.Errorf("got %s", m.Append(nil))
	}
	c.close()
	if seen := strings.Join(f.all(), " "); strings.Count(seen, "initialize ") != 1 {
		t.Errorf("server has seen %s", seen)
	}
}

// TestD34_NotFoundOfTheRequest: some servers give each error about a resource or tool status 404. A new session is made,
// as the protocol demands, and then the server's own error is the answer.
func TestD34_NotFoundOfTheRequest(t *testing.T) {
	f := newFake(t)
	f.handle("resources/read", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		w.Write(jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: -32002, Message: "Resource not found"}).Append(nil))
	})
	c := connect(t, f)
	c.request(1, "resources/read", `{"uri":"x:1"}`)
	m := c.recv()
	for ; m.IsNotification(); m = c.recv() {
	}
	if m.ID != jsonrpc.IntID(1) || !strings.Contains(string(m.Error), "Resource not found") {
		t.Errorf("got %s", m.Append(nil))
	}
	c.close()
	if seen := strings.Join(f.all(), " "); strings.Count(seen, "initialize ") != 2 {
		t.Errorf("server has seen %s", seen)
	}
}

// TestD34_SilentInitialize: a server that does not answer initialize has startTimeout, and the next call tries again.
func TestD34_SilentInitialize(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		s, _ := server(t, f.URL)
		s.StartTimeout = 2 * time.Second
		c := shaken(t, f.reach(s))
		f.forget()
		f.handle("initialize", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
		began := time.Now()
		c.request(1, "tools/call", "{}")
		wantError(t, c.recv(), 1, jsonrpc.ReasonClosed, "HTTP 404", jsonrpc.InFlight)
		if took := time.Since(began); took != s.StartTimeout {
			t.Errorf("it took %v", took)
		}
		f.handle("initialize", nil)
		c.request(2, "tools/call", "{}")
		m := c.recv()
		for ; !m.IsResponse(); m = c.recv() {
		}
		wantResult(t, m, 2, `{}`)
		c.close()
	})
}
