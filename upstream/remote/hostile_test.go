package remote

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// memory returns the bytes that live after a collection.
func memory() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// flood writes chunk until the client leaves, or more bytes than that.
func flood(w io.Writer, chunk string, bytes int) {
	for sent := 0; sent < bytes; sent += len(chunk) {
		if _, err := io.WriteString(w, chunk); err != nil {
			return
		}
	}
}

func TestHostileAnswers(t *testing.T) {
	const many = 100 << 20
	chunk := strings.Repeat("x", 64<<10)
	tests := []struct {
		name, cause string
		answer      func(w http.ResponseWriter, r *http.Request)
	}{
		{"event of 100 MiB", "message over the limit of 1 MiB (limits.message)", func(w http.ResponseWriter, r *http.Request) {
			stream(w, "data: ")
			flood(w, chunk, many)
			block(r)
		}},
		{"event of many lines", "message over the limit of 1 MiB (limits.message)", func(w http.ResponseWriter, r *http.Request) {
			stream(w, "")
			flood(w, strings.Repeat("data: x\n", 8<<10), many)
			block(r)
		}},
		{"JSON of 100 MiB", "message over the limit of 1 MiB (limits.message)", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			flood(w, chunk, many)
		}},
		{"gzip bomb", "compressed response", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "gzip")
			var bomb bytes.Buffer
			z := gzip.NewWriter(&bomb)
			flood(z, strings.Repeat(" ", 1<<20), many/20)
			z.Close()
			w.Write(bomb.Bytes())
		}},
		{"comments, then the end", "stream ended", func(w http.ResponseWriter, _ *http.Request) {
			stream(w, "")
			flood(w, ": "+strings.Repeat("x", 1000)+"\n", many/4)
		}},
		{"one comment without an end", "stream ended", func(w http.ResponseWriter, _ *http.Request) {
			stream(w, ":")
			flood(w, chunk, many/4)
		}},
		{"events of no meaning, then the end", "stream ended", func(w http.ResponseWriter, _ *http.Request) {
			stream(w, "")
			flood(w, "event: x\ndata: y\n\n", many/100)
		}},
		{"header of 10 MiB", "request failed", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 10<<20))
		}},
		{"error of 100 MiB", "HTTP 500", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(500)
			flood(w, chunk, many)
		}},
	}
	for era, begin := range map[string]func(*testing.T, *Server) *client{"legacy": shaken, "modern": dialModern} {
		for _, tt := range tests {
			t.Run(era+" "+tt.name, func(t *testing.T) {
				f := newFake(t)
				f.handle("tools/call", func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { tt.answer(w, r) })
				s, _ := server(t, f.URL)
				s.Limits.Message = 1 << 20
				c := begin(t, s)
				before := memory()
				c.request(1, "tools/call", "")
				m := c.recv()
				if !strings.Contains(string(m.Error), fmt.Sprintf("%q", tt.cause)) {
					t.Errorf("got %s, want %s", m.Append(nil), tt.cause)
				}
				if after := memory(); after > before+20<<20 {
					t.Errorf("%d bytes before, %d after", before, after)
				}
				c.request(2, "ping", "")
				wantResult(t, c.recv(), 2, `{}`)
			})
		}
	}
}

// TestEndlessStream leaves the session usable, and closing it short.
func TestEndlessStream(t *testing.T) {
	f := newFake(t)
	f.get = func(w http.ResponseWriter, _ *http.Request) {
		stream(w, "")
		for {
			if _, err := io.WriteString(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n"); err != nil {
				return
			}
		}
	}
	c := connect(t, f)
	for range 1000 {
		c.recv()
	}
	before := memory()
	time.Sleep(50 * time.Millisecond) // nobody receives, so nothing is read
	if after := memory(); after > before+10<<20 {
		t.Errorf("%d bytes before, %d after", before, after)
	}
	c.request(1, "ping", "")
	for m := c.recv(); m.Result == nil; m = c.recv() {
	}
}

// TestLongEvent has a limit on time: the reading of an event must not begin anew
// with each packet.
func TestLongEvent(t *testing.T) {
	t.Parallel()
	const size = 15 << 20
	f := newFake(t)
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		stream(w, fmt.Sprintf(`data: {"jsonrpc":"2.0","id":%s,"result":{"text":"`, m.ID))
		flood(w, strings.Repeat("x", 1000), size)
		stream(w, "\"}}\n\n")
	})
	c := connect(t, f)
	c.request(1, "tools/call", "")
	if m := c.recv(); len(m.Result) < size {
		t.Errorf("got %.200s", m.Append(nil))
	}
}

func TestOversizeOnTheGetStreamCostsThatMessage(t *testing.T) {
	f := newFake(t)
	f.get = func(w http.ResponseWriter, r *http.Request) {
		stream(w, "data: ")
		flood(w, strings.Repeat("x", 64<<10), 4<<20)
		stream(w, "\n\ndata: not json\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n")
		block(r)
	}
	s, _ := server(t, f.URL)
	s.Limits.Message = 1 << 20
	c := shaken(t, s)
	for range 2 {
		if r := c.next(); r.err == nil || !strings.Contains(fmt.Sprintf("%T", r.err), "InvalidError") {
			t.Errorf("got %v, %v", r.m, r.err)
		}
	}
	if m := c.recv(); m.Method != "notifications/x" {
		t.Errorf("got %s", m.Append(nil))
	}
}

func TestSlowHeadersCostOnlyTheirCall(t *testing.T) {
	t.Parallel()
	f := newFake(t)
	f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
	f.handle("notifications/n", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
	c := connect(t, f)
	c.request(1, "tools/call", "")
	c.notify("notifications/n", "")
	f.await("notifications/n", 1)
	c.request(2, "ping", "")
	wantResult(t, c.recv(), 2, `{}`)
}

// TestSwitchedProtocols is of a server that leaves HTTP unasked, after which the
// end of a request's context unblocks nothing.
func TestSwitchedProtocols(t *testing.T) {
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		f := newFake(t)
		var calls atomic.Int64
		f.any = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != method || method == http.MethodPost && calls.Add(1) != 3 { // initialize, initialized
				return false
			}
			socket, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return true
			}
			defer socket.Close()
			io.WriteString(socket, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
			io.Copy(io.Discard, socket)
			return true
		}
		c := connect(t, f)
		if method == http.MethodPost {
			c.request(1, "tools/call", "")
			wantError(t, c.recv(), 1, closed, "HTTP 101", jsonrpc.InFlight)
		}
		c.request(2, "ping", "")
		wantResult(t, c.recv(), 2, `{}`)
		within(t, "Close", c.close)
	}
}

// TestLogQuotesNoServer is of a server that has net/http repeat our secrets, or
// what it likes, in an error.
func TestLogQuotesNoServer(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{
		"%s\r\n\r\n",
		"HTTP/1.1 %s\r\n\r\n",
		"HTTP/1.1 200 OK\r\n%s\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: %s\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: %s\r\n\r\n",
		"HTTP/1.1 307 X\r\nLocation: http://[%s\r\n\r\n",
		"HTTP/1.1 302 X\r\nLocation: /%%zz%s\r\n\r\n",
	} {
		f := newFake(t)
		f.handle("tools/call", func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
			if socket, _, err := http.NewResponseController(w).Hijack(); err == nil {
				defer socket.Close()
				fmt.Fprintf(socket, answer, r.Header.Get("Authorization"))
			}
		})
		s, l := server(t, f.URL)
		s.Headers = map[string]string{"Authorization": "canary"}
		c := shaken(t, s)
		c.request(1, "tools/call", "")
		wantError(t, c.recv(), 1, closed, "request failed", jsonrpc.InFlight)
		c.close()
		if text := l.String(); strings.Contains(text, "canary") || l.sum("requests to the upstream failed") != 1 {
			t.Errorf("after %q the log is %s", answer, text)
		}
	}
}
