package remote

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

func TestD30_ResumesBehindTheLastEvent(t *testing.T) {
	f := newFake(t)
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
		stream(w, "id: 1\nretry: 20\ndata:\n\n") // the priming event
		stream(w, "id: 2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/a\"}\n\n")
		drop(w)
	})
	got := make(chan string, 10)
	f.get = func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("Last-Event-ID")
		if id == "" {
			w.WriteHeader(405)
			return
		}
		got <- id + r.Header.Get("Mcp-Session-Id")
		switch id {
		case "2": // and again: polling
			stream(w, "id: 3\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/b\"}\n\n")
		case "3":
			stream(w, "id: 4\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"ok\":true}}\n\n")
		}
	}
	c := connect(t, f)
	c.request(1, "tools/call", "")
	for _, want := range []string{"notifications/a", "notifications/b"} {
		if m := c.recv(); m.Method != want || m.Related != jsonrpc.IntID(1) {
			t.Errorf("got %s related to %q, want %s", m.Append(nil), m.Related, want)
		}
	}
	wantResult(t, c.recv(), 1, `{"ok":true}`)
	if a, b := <-got, <-got; a != "2session-1" || b != "3session-1" {
		t.Errorf("resumed with %s and %s", a, b)
	}
	if n := strings.Count(strings.Join(f.all(), " "), "tools/call"); n != 1 {
		t.Errorf("it was sent %d times", n)
	}
}

func TestD30_HonoursRetry(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		const retry = 600 * time.Millisecond // longer than we would wait
		var dropped time.Time
		f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
			stream(w, fmt.Sprintf("id: 1\nretry: %d\ndata:\n\n", retry.Milliseconds()))
			dropped = time.Now()
			drop(w)
		})
		f.get = func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Last-Event-ID") == "" {
				w.WriteHeader(405)
				return
			}
			if waited := time.Since(dropped); waited != retry {
				t.Errorf("it came back after %v", waited)
			}
			stream(w, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n")
		}
		c := connect(t, f)
		c.request(1, "tools/call", "")
		wantResult(t, c.recv(), 1, `{}`)
	})
}

// A server may end each stream at once, and let the client come back until it has the reply (SEP-1699).
func TestD30_Polls(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fake) {
		f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
			stream(w, "id: 1\nretry: 100\ndata:\n\n")
		})
		gets := 0
		f.get = func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Header.Get("Last-Event-ID") == "":
				w.WriteHeader(405)
			case gets < 5:
				gets++
				stream(w, "retry: 100\n\n")
			case gets < 8:
				gets++
				stream(w, ": nothing\n\n")
				time.Sleep(healthy + time.Second)
			default:
				stream(w, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n")
			}
		}
		c := connect(t, f)
		c.request(1, "tools/call", "")
		time.Sleep(time.Minute)
		wantResult(t, c.recv(), 1, `{}`)
	})
}

func TestD30_ResumptionFails(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, cause string
		gets        int // with Last-Event-ID; zero if an open connection may be used first
		get         func(f *fake, w http.ResponseWriter)
	}{
		{"404", "HTTP 404", 1, func(_ *fake, w http.ResponseWriter) { w.WriteHeader(404) }},
		{"405", "HTTP 405", 1, func(_ *fake, w http.ResponseWriter) { w.WriteHeader(405) }},
		{"no progress", "stream ended", 2, func(_ *fake, w http.ResponseWriter) { stream(w, ": nothing\n\n") }},
		{"500", "connection lost", 2, func(_ *fake, w http.ResponseWriter) { w.WriteHeader(500) }},
		{"refused", "connection refused", 0, func(f *fake, w http.ResponseWriter) {
			f.Listener.Close()
			drop(w)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t)
			f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
				stream(w, "id: 1\nretry: 5\ndata:\n\n")
			})
			var gets atomic.Int64
			f.get = func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Last-Event-ID") == "" {
					w.WriteHeader(405)
					return
				}
				gets.Add(1)
				tt.get(f, w)
			}
			c := connect(t, f)
			f.await("GET", 1)
			c.request(1, "tools/call", "")
			wantError(t, c.recv(), 1, closed, tt.cause, jsonrpc.InFlight)
			if tt.gets != 0 && gets.Load() != int64(tt.gets) {
				t.Errorf("%d attempts, want %d", gets.Load(), tt.gets)
			}
		})
	}
}

func TestD31_StreamEndsWithoutIDAndResponse(t *testing.T) {
	f := newFake(t)
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
		stream(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n")
	})
	c := connect(t, f)
	f.await("GET", 1)
	c.request(1, "tools/call", "")
	if m := c.recv(); m.Method != "notifications/x" {
		t.Errorf("got %s", m.Append(nil))
	}
	wantError(t, c.recv(), 1, closed, "stream ended", jsonrpc.InFlight)
	c.close()
	if seen := strings.Join(f.all(), " "); strings.Count(seen, "GET") != 1 || strings.Count(seen, "tools/call") != 1 {
		t.Errorf("server has seen %s", seen)
	}
}
