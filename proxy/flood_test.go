package proxy_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// limited limits b and no other client.
func limited(l config.PolicyLimits) func(*config.Config) {
	return func(cfg *config.Config) {
		cfg.Policies = []config.Policy{{Key: "policies[0]", Who: config.Who{Token: "b"}, Limits: l}, {Key: "policies[1]", Who: config.Who{Any: true}}}
	}
}

// wantBusy checks that a response is 429 and says when to try again.
func wantBusy(t *testing.T, what string, resp *http.Response) {
	t.Helper()
	resp.Body.Close()
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%s: %s, Retry-After %q", what, resp.Status, resp.Header.Get("Retry-After"))
	}
}

const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// A client with as many sessions as its policy allows gets no more of any kind. Others do.
func TestFloodOfSessions(t *testing.T) {
	h := newHouse(t, limited(config.PolicyLimits{Sessions: 2}))
	h.b.initialize()
	h.socket(h.b, "/ws")
	wantBusy(t, "a session", h.b.open("POST", "/mcp", hello))
	wantBusy(t, "one of HTTP+SSE", h.b.open("GET", "/sse", ""))
	text, headers := modern("1", "tools/list", "", "")
	wantBusy(t, "a modern request", h.b.open("POST", "/mcp/u", text, headers...))
	_, resp, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(h.url, "http")+"/ws", http.Header{"Authorization": {"Bearer " + h.b.token}})
	if err == nil {
		t.Fatal("a WebSocket too many")
	}
	wantBusy(t, "a WebSocket", resp)
	for range 5 {
		h.a.initialize()
	}
	h.socket(h.a, "/ws")

	h = newHouse(t, func(cfg *config.Config) { cfg.Limits.Sessions = 2 }) // of all, and B has no limit
	h.b.initialize()
	h.socket(h.b, "/ws")
	resp = h.a.open("POST", "/mcp", hello)
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one beyond those of all: %s, Retry-After %q", resp.Status, resp.Header.Get("Retry-After"))
	}
}

// A client with as many requests in flight as its policy allows gets no more, in any of its
// sessions. Others do.
func TestFloodOfRequests(t *testing.T) {
	h := newHouse(t, limited(config.PolicyLimits{InFlight: 2}))
	h.b.initialize()
	h.hang(h.b, "1")
	second := h.caller(h.b.token, "/mcp").initialize()
	h.hang(second, "1")
	for _, c := range []*caller{h.b, second} {
		wantBusy(t, "a legacy call", c.open("POST", "/mcp", onSession[0].body, c.headers()...))
	}
	text, headers := modern("1", "tools/call", "echo", `,"name":"echo"`)
	wantBusy(t, "a modern call", h.b.open("POST", "/mcp", text, headers...))
	socket := h.socket(h.b, "/ws")
	socket.say(text)
	if got := socket.hears(`"id":1`); !strings.Contains(got, "overloaded") {
		t.Error("on a WebSocket:", got)
	}
	if status, text := h.a.ask("tools/call", "echo", `,"name":"echo"`); !strings.Contains(text, `"result"`) {
		t.Error("a:", status, text)
	}
	close(h.server.release)
	eventually(t, "room", func() bool {
		_, text := h.b.ask("tools/call", "echo", `,"name":"echo"`)
		return strings.Contains(text, `"result"`)
	})
}

// A client that sends too many requests must wait, and too many notifications are dropped. Others
// are not delayed.
func TestFloodByRate(t *testing.T) {
	t.Parallel()
	h := newHouse(t, limited(config.PolicyLimits{Rate: 0.01}))
	text, headers := modern("1", "tools/call", "echo", `,"name":"echo"`)
	refused := false
	for range 20 {
		resp := h.b.open("POST", "/mcp", text, headers...)
		resp.Body.Close()
		refused = resp.StatusCode == http.StatusTooManyRequests
	}
	if !refused {
		t.Error("20 requests at once")
	}
	wantBusy(t, "one more", h.b.open("POST", "/mcp", text, headers...))
	wantBusy(t, "one more at another path", h.b.open("POST", "/mcp/u", text, headers...))
	for range 20 {
		if status, text := h.a.ask("tools/call", "echo", `,"name":"echo"`); status != http.StatusOK {
			t.Error("a:", status, text)
		}
	}
	floodWithNotifications(t)
}

func floodWithNotifications(t *testing.T) {
	h := newHouse(t, limited(config.PolicyLimits{Rate: 0.01}))
	h.b.initialize()
	connect := func(who *caller) *wsClient {
		c := h.socket(who, "/ws")
		c.say(hello)
		c.hears(`"protocolVersion"`)
		return c
	}
	b := connect(h.b)
	const notify = `{"jsonrpc":"2.0","method":"notifications/x","params":{"of":%q}}`
	for range 500 {
		b.say(fmt.Sprintf(notify, "b"))
		h.b.say(fmt.Sprintf(notify, "b")) // on HTTP
	}
	b.say(`{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	b.hears(`"id":1`)
	a := connect(h.a) // not before: who does not read answers no pings
	for range 50 {
		a.say(fmt.Sprintf(notify, "a"))
	}
	h.server.awaits(50, `"of":"a"`)
	if n := h.server.saw(`"of":"b"`); n > 10 {
		t.Errorf("%d notifications of b have reached the server", n)
	}
	dropped := 0
	for _, s := range h.proxy.Snapshot().Sessions {
		dropped += s.Dropped
	}
	if dropped < 990 {
		t.Errorf("the status counts %d dropped notifications of 1,000", dropped)
	}
}

// Calls that one principal leaves suspended take no room from another, however many.
func TestFloodOfSuspendedCalls(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(cfg *config.Config) { cfg.Upstreams[0].Era = "legacy" })
	var wg sync.WaitGroup
	var mu sync.Mutex
	answers := make(map[bool]int) // whether the call was suspended
	for range 8 {
		wg.Go(func() {
			for range 40 { // 320: there is room for 256
				_, text := h.b.ask("tools/call", "ask", `,"name":"ask"`)
				mu.Lock()
				answers[strings.Contains(text, "requestState")]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if answers[false] == 0 || answers[true] == 0 {
		t.Error("suspended calls of b:", answers)
	}
	_, text := h.a.ask("tools/call", "ask", `,"name":"ask"`)
	_, state, _ := strings.Cut(text, `"requestState":"`)
	state, _, _ = strings.Cut(state, `"`)
	_, key, _ := strings.Cut(text, `"inputRequests":{"`)
	key, _, _ = strings.Cut(key, `"`)
	_, text = h.a.ask("tools/call", "ask", fmt.Sprintf(`,"name":"ask","requestState":%q,"inputResponses":{%q:{"action":"accept","content":{"by":"a"}}}`, state, key))
	if !strings.Contains(text, `\"by\":\"a\"`) {
		t.Error("a got", text)
	}
}

// Each wrong token costs an answer, and nothing else: no session, no request at a server, no
// memory, little work, and a few lines in the log.
func TestFloodOfTokens(t *testing.T) {
	h := newHouse(t, func(cfg *config.Config) {
		cfg.Links = []config.Link{{Name: "far", Key: "links.far", Accept: true, TokenFile: secretFile(t, "token-of-far")}}
	})
	handler := h.proxy.Handler()
	flood := func(rounds int) (body int64) {
		for range rounds {
			for _, target := range []string{"POST /mcp", "GET /mcp", "DELETE /mcp", "POST /mcp/u", "GET /ws", "GET /ws/u", "GET /sse", "POST /message", "GET /link"} {
				for _, authorization := range []string{"", "Bearer wrong", "Bearer a.b.c", "Basic YTpi"} {
					n := h.refused(handler, target, authorization)
					body += n
				}
			}
		}
		return body
	}
	flood(10) // what is allocated once
	before := memory()
	const rounds, requests = 100, 100 * 9 * 4
	var wg sync.WaitGroup
	var read int64
	wg.Go(func() { read = flood(rounds) })
	wg.Wait()
	after := memory()
	if read != 0 {
		t.Errorf("%d bytes of bodies were read before the token was looked at", read)
	}
	if each := (after.TotalAlloc - before.TotalAlloc) / requests; each > 16<<10 {
		t.Errorf("%d bytes are allocated for each request, the test's own included", each)
	}
	if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 1<<20 {
		t.Errorf("%d bytes are kept", kept)
	}
	if n := strings.Count(h.log.String(), "\n"); n > 50 {
		t.Errorf("%d lines for %d requests", n, requests)
	}
	if n := len(h.proxy.Snapshot().Sessions); n != 0 || h.server.saw() != 0 {
		t.Errorf("%d sessions, and %d requests at the server", n, h.server.saw())
	}
	wg.Go(func() { flood(rounds) })
	for range 50 {
		if status, text := h.a.ask("tools/call", "echo", `,"name":"echo"`); status != http.StatusOK {
			t.Error("a:", status, text)
		}
	}
	wg.Wait()
}

// refused sends a request that must get 401, and returns how much of its body was read.
func (h *house) refused(handler http.Handler, target, authorization string) (read int64) {
	h.t.Helper()
	method, path, _ := strings.Cut(target, " ")
	body := &endless{}
	r := httptest.NewRequest(method, "http://localhost"+path, nil)
	if method == http.MethodPost {
		r.Body, r.ContentLength = body, 1<<20
	}
	r.Header.Set("Authorization", authorization)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	if w.Code != http.StatusUnauthorized {
		h.t.Errorf("%s with %q: %d", target, authorization, w.Code)
	}
	return body.read
}

// An endless body counts the bytes that were read.
type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	e.read += int64(len(p))
	return len(p), nil
}

func (e *endless) Close() error { return nil }

func memory() (m runtime.MemStats) {
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}
