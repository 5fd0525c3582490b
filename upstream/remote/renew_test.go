package remote

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
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

// TestD34_SilentCall waits for a response that the lost session will not give.
func TestD34_SilentCall(t *testing.T) {
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
