package remote

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// TestProbe tells from the answer to server/discover who speaks the modern era.
func TestProbe(t *testing.T) {
	rpc := func(rest string) string { return `{"jsonrpc":"2.0",` + rest + `}` }
	own := `"id":"mcp-proxy:discover",`
	refusal := func(code, data string) string {
		return rpc(own + `"error":{"code":` + code + `,"message":"x","data":` + data + `}`)
	}
	const html, typeHTML = "<!doctype html><title>mcp</title>", "text/html"
	tests := []struct {
		name, kind string
		status     int
		body       string
		modern     bool
		cause      string // of the error; "" for none
	}{
		{"modern", typeJSON, 200, rpc(own + `"result":{"supportedVersions":["2025-11-25","2026-07-28"]}`), true, ""},
		{"modern as a stream", typeSSE, 200, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\ndata: " + rpc(own+`"result":{"supportedVersions":["2026-07-28"]}`) + "\n\n", true, ""},
		{"legacy alone", typeJSON, 200, rpc(own + `"result":{"supportedVersions":["2025-11-25","2025-06-18"]}`), false, ""},
		{"later alone", typeJSON, 200, rpc(own + `"result":{"supportedVersions":["2030-01-01"]}`), false, "speaks only 2030-01-01, and this proxy speaks 2024-11-05 to 2026-07-28"},
		{"no versions", typeJSON, 200, rpc(own + `"result":{}`), false, ""},
		{"versions that are none", typeJSON, 200, rpc(own + `"result":{"supportedVersions":{"2026-07-28":[2026]}}`), false, ""},
		{"another version", typeJSON, 400, refusal("-32022", `{"supported":["2026-07-28"],"requested":"x"}`), true, ""},
		{"legacy versions", typeJSON, 400, refusal("-32022", `{"supported":["2025-11-25"]}`), false, ""},
		{"another version without data", typeJSON, 400, rpc(`"error":{"code":-32022,"message":"x"}`), false, ""},
		{"a header missing", typeJSON, 400, rpc(`"error":{"code":-32020,"message":"x"}`), true, ""},
		{"a capability missing", typeJSON, 400, refusal("-32021", `{"requiredCapabilities":{"sampling":{}}}`), true, ""},
		{"unknown method", typeJSON, 404, refusal("-32601", `1`), false, ""},
		{"unknown method, 200", typeJSON, 200, refusal("-32601", `1`), false, ""},
		{"not initialized", typeJSON, 400, rpc(`"id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}`), false, ""},
		{"an HTML page", typeHTML, 200, html, false, ""},
		{"an HTML page for 404", typeHTML, 404, html, false, ""},
		{"nothing", "", 200, "", false, ""},
		{"accepted", "", 202, "", false, ""},
		{"no such method", "", 405, "", false, ""},
		{"bad request", typeJSON, 400, "{}", false, ""},
		{"no JSON", typeJSON, 200, "{", false, ""},
		{"an answer to another", typeJSON, 200, rpc(`"id":7,"result":{"supportedVersions":["2026-07-28"]}`), false, ""},
		{"unauthorized", typeJSON, 401, refusal("-32601", `1`), false, "HTTP 401"},
		{"forbidden", "", 403, "", false, "HTTP 403"},
		{"too many", "", 429, "", false, "HTTP 429"},
		{"broken", typeJSON, 500, refusal("-32603", `1`), false, "HTTP 500"},
		{"broken gateway", typeHTML, 502, html, false, "HTTP 502"},
		{"elsewhere", "", 307, "", false, "HTTP 307"},
		{"a stream that ends", typeSSE, 200, ": x\n\n", false, "stream ended"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFake(t)
			f.any = func(w http.ResponseWriter, r *http.Request) bool {
				_, _ = io.Copy(io.Discard, r.Body)
				if r.Method != http.MethodPost || r.Header.Get("Mcp-Method") != "server/discover" || r.Header.Get("Mcp-Protocol-Version") != "2026-07-28" {
					t.Errorf("asked with %s %v", r.Method, r.Header)
				}
				if tt.kind != "" {
					w.Header().Set("Content-Type", tt.kind)
				}
				if tt.status == 307 {
					w.Header().Set("Location", "http://127.0.0.1:1/")
				}
				w.WriteHeader(tt.status)
				io.WriteString(w, tt.body)
				return true
			}
			s, _ := server(t, f.URL)
			s.MaxConcurrent = 1
			s.prepare().slots.TryAcquire(1) // a question about the server does not wait for calls
			wantVerdict(t, s, tt.modern, tt.cause)
		})
	}
}

// wantVerdict checks what a probe says. cause is that of the error, "" for none.
func wantVerdict(t *testing.T, s *Server, modern bool, cause string) {
	t.Helper()
	wantVerdictIn(t, context.Background(), s, modern, cause)
}

func wantVerdictIn(t *testing.T, ctx context.Context, s *Server, modern bool, cause string) {
	t.Helper()
	var got bool
	var err error
	within(t, "Probe", func() { got, err = s.Probe(ctx) })
	end, _ := err.(*jsonrpc.ClosedError)
	other, _ := errors.AsType[*mcp.VersionError](err)
	switch {
	case got != modern:
		t.Errorf("modern: %v, %v", got, err)
	case other != nil && other.Error() == cause:
	case cause == "" && err != nil || cause != "" && (end == nil || end.Cause.String() != cause || end.Delivered):
		t.Errorf("%v, want %q", err, cause)
	}
}

// TestProbeNobody cannot tell, and waits for no one for long.
func TestProbeNobody(t *testing.T) {
	f := newFake(t)
	f.handle("server/discover", func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
	s, _ := server(t, f.URL)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		f.await("server/discover", 1)
		cancel()
	}()
	wantVerdictIn(t, ctx, s, false, "request failed")

	f.Close()
	wantVerdict(t, s, false, "connection refused")
	s, _ = server(t, "ftp://x")
	wantVerdict(t, s, false, "request failed")
	s, _ = server(t, f.URL)
	s.SSE = true
	wantVerdict(t, s, false, "")
}

// TestProbeWebSocket asks on a connection of its own, and on a second one if the first is
// lost: a server that restarts loses it whatever era it speaks.
func TestProbeWebSocket(t *testing.T) {
	modern := func(c jsonrpc.Conn, m *jsonrpc.Message) {
		c.Send(jsonrpc.NewNotification("notifications/x", nil))
		c.Send(jsonrpc.NewResult(m.ID, raw(`{"supportedVersions":["2026-07-28"]}`)))
	}
	legacy := func(c jsonrpc.Conn, m *jsonrpc.Message) {
		c.Send(jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: -32601, Message: "x"}))
	}
	leaves := func(c jsonrpc.Conn, _ *jsonrpc.Message) { c.Close() }
	type answer = func(jsonrpc.Conn, *jsonrpc.Message)
	tests := map[string]struct {
		answers []answer // one for each connection
		modern  bool
	}{
		"modern": {[]answer{modern}, true},
		"legacy": {[]answer{legacy}, false},
		"silent": {[]answer{func(jsonrpc.Conn, *jsonrpc.Message) {}}, false},
		"waits for its upstreams": {[]answer{func(c jsonrpc.Conn, m *jsonrpc.Message) {
			time.Sleep(8 * time.Second)
			modern(c, m)
		}}, true},
		"restarts, modern": {[]answer{leaves, modern}, true},
		"restarts, legacy": {[]answer{leaves, legacy}, false},
		"leaves":           {[]answer{leaves, leaves}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // some of them wait more than they work
			url, conns := wsFake(t)
			var served sync.WaitGroup
			defer served.Wait()
			served.Go(func() {
				for _, answer := range tt.answers {
					serveProbe(t, <-conns, answer)
				}
			})
			s, _ := server(t, url)
			wantVerdict(t, s, tt.modern, "")
		})
	}
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }))
	defer refusing.Close()
	s, _ := server(t, "ws"+strings.TrimPrefix(refusing.URL, "http"))
	wantVerdict(t, s, false, "HTTP 401")
}

// serveProbe answers a probe, and waits until its connection ends.
func serveProbe(t *testing.T, c jsonrpc.Conn, answer func(jsonrpc.Conn, *jsonrpc.Message)) {
	defer c.Close()
	m, err := c.Recv()
	if err != nil || m.Method != "server/discover" || !strings.Contains(string(m.Params), "2026-07-28") {
		t.Errorf("server received %v, %v", m, err)
		return
	}
	answer(c, m)
	c.Recv()
}

// A server that is lost, and cannot be reached again, has told nothing.
func TestProbeOfWebSocketThatGoes(t *testing.T) {
	var accepted atomic.Bool
	gone := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if accepted.Swap(true) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if c, err := (wsconn.Config{}).Accept(w, r, nil); err == nil {
			serveProbe(t, c, func(c jsonrpc.Conn, _ *jsonrpc.Message) { c.Close() })
		}
	}))
	defer gone.Close()
	s, _ := server(t, "ws"+strings.TrimPrefix(gone.URL, "http"))
	wantVerdict(t, s, false, "HTTP 503")
}

// A server of the modern era that is replaced by one of the legacy era is found out
// by the way in which it refuses: the stream ends, so that the host asks anew.
func TestServerThatWasReplaced(t *testing.T) {
	refuse := func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		w.Write([]byte(`{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Bad Request: Server not initialized"}}`))
	}
	f := newFake(t)
	c := connectModern(t, f)
	f.handle("server/discover", refuse)
	f.handle("prompts/get", refuse)
	c.request(1, "prompts/get", params(`"name":"p"`))
	if m := c.recv(); m.Error == nil {
		t.Errorf("got %s", m.Append(nil))
	}
	if end := c.end(); !errors.Is(end, mcp.ErrOtherEra) || !end.Delivered {
		t.Errorf("ended with %+v", end)
	}
}

// Something in front of the server that is being restarted answers everything with 404, now and then:
// the calls whose streams are open go on. If nothing else comes, the server was replaced.
func TestServerThatIsBehindA404(t *testing.T) {
	f := newFake(t)
	finish := make(chan struct{})
	f.handle("tools/call", func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
		stream(w, ": open\n\n")
		select {
		case <-finish:
			io.WriteString(w, sseResult(m, `{"resultType":"complete"}`))
		case <-r.Context().Done():
		}
	})
	gone := func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
		http.Error(w, "no backend", http.StatusNotFound)
	}
	f.handle("server/discover", gone)
	f.handle("prompts/get", gone)
	s, _ := modernServer(t, f)
	c := dialModern(t, s)
	probes := 0
	blip := func() {
		s.transport.doubted.Store(0) // as a minute later
		c.request(9, "prompts/get", params(`"name":"p"`))
		wantError(t, c.recv(), 9, closed, "HTTP 404", jsonrpc.InFlight)
		probes++
		f.await("server/discover", probes)
	}
	for id := range int64(3) {
		c.request(id, "tools/call", params(`"name":"t"`))
		f.await("tools/call", int(id)+1)
		blip()
		for s.transport.mute.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		select {
		case finish <- struct{}{}:
		case <-time.After(patience):
			t.Fatal("the call has ended")
		}
		if m := c.recv(); m.Result == nil {
			t.Fatalf("got %s", m.Append(nil))
		}
	}
	blip()
	blip()
	if end := c.end(); !errors.Is(end, mcp.ErrOtherEra) {
		t.Errorf("ended with %+v", end)
	}
}

// One that refuses a request alone is the one it was, and is not asked each time.
func TestServerThatRefuses(t *testing.T) {
	f := newFake(t)
	f.handle("server/discover", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		reply(w, m, `{"supportedVersions":["2026-07-28"]}`)
	})
	f.handle("prompts/get", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
		w.WriteHeader(http.StatusBadRequest)
	})
	c := connectModern(t, f)
	for id := range int64(5) {
		c.request(id+1, "prompts/get", params(`"name":"p"`))
		c.recv()
	}
	f.await("server/discover", 1)
	c.request(9, "ping", params(""))
	c.recv()
	n := 0
	for _, what := range f.all() {
		if what == "server/discover" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("asked %d times", n)
	}
}
