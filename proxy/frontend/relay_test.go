package frontend

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// scriptedOwner starts two replicas. What is passed on to the first gets script, and b gets a client with
// a session there.
func scriptedOwner(t *testing.T, setUp func(*HTTP), script func(a *replica, w http.ResponseWriter, r *http.Request)) (f fleet, c *testClient) {
	t.Helper()
	f = newFleet(t, "a b", func(_ string, h *HTTP) {
		if setUp != nil {
			setUp(h)
		}
	}, func(name string, h http.Handler) http.Handler {
		if name != "a" {
			return h
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { script(f["a"], w, r) })
	})
	c = f["b"].at("/mcp")
	c.session, c.version = "a.0.mac", "2025-03-26"
	return f, c
}

// loses breaks off a response as the end of a link does.
func (r *replica) loses() {
	r.lose()
	panic(http.ErrAbortHandler)
}

// writes returns a script that reads the request, writes one part after the other, and then breaks off.
func writes(media string, parts ...string) func(*replica, http.ResponseWriter, *http.Request) {
	return func(a *replica, w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", media)
		for _, part := range parts {
			io.WriteString(w, part)
			http.NewResponseController(w).Flush()
		}
		a.loses()
	}
}

const (
	twoCalls   = `[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","method":"n"},{"jsonrpc":"2.0","id":"two","method":"b"}]`
	anAnswer   = `{"jsonrpc":"2.0","id":7,"result":{}}`
	progress   = "event: message\nid: 1-1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\n\n"
	firstDone  = "event: message\nid: 1-2\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"
	secondDone = "data:{\"jsonrpc\":\"2.0\",\ndata:\"id\":\"two\",\"error\":{\"code\":1,\"message\":\"no\"}}\n\n"
)

func closedEvent(id, err string) string {
	return "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":" + id + ",\"error\":" + err + "}\n\n"
}

// TestLostBefore: the link cannot be opened, so nothing was sent.
func TestLostBefore(t *testing.T) {
	f, c := scriptedOwner(t, nil, func(*replica, http.ResponseWriter, *http.Request) { t.Error("it arrived") })
	f["a"].cut()
	all := func() []*http.Response {
		return []*http.Response{c.post(ping), c.post(twoCalls), c.post(anAnswer), c.post(`{"jsonrpc":"2.0","method":"n"}`), c.get(), c.delete()}
	}
	wantRefusal(t, c.post(`x`), http.StatusServiceUnavailable, -32603)
	for _, resp := range all() {
		wantRefusal(t, resp, http.StatusServiceUnavailable, -32603)
		if resp.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	f["b"].sees("a", Gone)
	for _, resp := range all() {
		wantRefusal(t, resp, http.StatusNotFound, -32600)
	}
}

// TestLostHalfSent: the link ends before it has taken the whole request.
func TestLostHalfSent(t *testing.T) {
	_, c := scriptedOwner(t, nil, func(a *replica, _ http.ResponseWriter, _ *http.Request) { a.cut() })
	resp := c.post(`{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"` + strings.Repeat("x", 15<<20) + `"}}`)
	wantRefusal(t, resp, http.StatusServiceUnavailable, -32603)
}

// TestLostAfter: the link ends when the owner has the request, before its response.
func TestLostAfter(t *testing.T) {
	for name, script := range map[string]func(*replica, http.ResponseWriter, *http.Request){
		"no response": func(a *replica, _ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			a.cut()
		},
		"half of the JSON": writes(typeJSON, `{"jsonrpc":"2.0","id":1,`, `"result":`),
		"half of a length": func(a *replica, w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			writes(typeJSON, `{"jsonrpc":"2.0","id":1,"result":{}}`)(a, w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			post := func(body string) *http.Response {
				_, c := scriptedOwner(t, nil, script)
				return c.post(body)
			}
			resp := post(ping)
			wantBody(t, resp, 200, `{"jsonrpc":"2.0","id":1,"error":`+lostError+`}`)
			wantBody(t, post(twoCalls), 200, `[{"jsonrpc":"2.0","id":1,"error":`+lostError+`},{"jsonrpc":"2.0","id":"two","error":`+lostError+`}]`)
			wantBody(t, post(anAnswer), http.StatusBadGateway, `{"jsonrpc":"2.0","error":`+lostError+`}`)
		})
	}
}

// TestLostAnswer: an answer whose owner is gone when the link ends gets 404.
func TestLostAnswer(t *testing.T) {
	var f fleet
	f, c := scriptedOwner(t, nil, func(a *replica, _ http.ResponseWriter, _ *http.Request) {
		f["b"].sees("a", Gone)
		a.cut()
	})
	wantRefusal(t, c.post(anAnswer), http.StatusNotFound, -32600)
}

// TestLostStreams: a stream that breaks off has whole events, one answer for each request, and a
// clean end.
func TestLostStreams(t *testing.T) {
	long := "data: {\"jsonrpc\":\"2.0\",\"method\":\"" + strings.Repeat("x", 300<<10) + "\"}\n\n"
	for name, tt := range map[string]struct {
		body  string
		parts []string
		want  string
	}{
		"at once":          {ping, nil, closedEvent("1", lostError)},
		"between events":   {ping, []string{progress}, progress + closedEvent("1", lostError)},
		"in an event":      {ping, []string{progress, firstDone[:40]}, progress + closedEvent("1", lostError)},
		"before its end":   {ping, []string{firstDone[:len(firstDone)-1]}, closedEvent("1", lostError)},
		"in pieces":        {ping, []string{progress[:30], progress[30:] + progress[:10], progress[10 : len(progress)-1], "\n"}, progress + progress + closedEvent("1", lostError)},
		"long events":      {ping, []string{long + long, long[:200<<10]}, long + long + closedEvent("1", lostError)},
		"after the answer": {ping, []string{progress + firstDone}, progress + firstDone},
		"then a comment":   {ping, []string{firstDone, ":\n\n", ":"}, firstDone + ":\n\n"},
		"other fields":     {ping, []string{"retry: 5\nid: 1-0\ndata:\n\n", ": x\nnew: field\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\nid: 9\n\n"}, "retry: 5\nid: 1-0\ndata:\n\n: x\nnew: field\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\nid: 9\n\n"},
		"half of a batch":  {twoCalls, []string{firstDone}, firstDone + closedEvent(`"two"`, lostError)},
		"other half":       {twoCalls, []string{secondDone}, secondDone + closedEvent("1", lostError)},
		"a whole batch":    {twoCalls, []string{secondDone, firstDone}, secondDone + firstDone},
		"a question":       {ping, []string{"data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\n"}, "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\n" + closedEvent("1", lostError)},
		"a large request":  {`{"jsonrpc":"2.0","id":1,"method":"a","params":{"x":"` + strings.Repeat("x", 2*largeBody) + `"}}`, []string{progress}, progress + closedEvent("1", lostError)},
	} {
		t.Run(name, func(t *testing.T) {
			_, c := scriptedOwner(t, nil, writes(typeSSE, append(tt.parts, "")...))
			if got := wantStatus(t, c.post(tt.body), 200); got != tt.want {
				t.Errorf("got  %.900q\nwant %.900q", got, tt.want)
			}
		})
	}
}

// TestLostGet: a stream of a GET ends, and its client resumes it.
func TestLostGet(t *testing.T) {
	_, c := scriptedOwner(t, nil, writes(typeSSE, progress, firstDone, progress[:50]))
	if got := wantStatus(t, c.get(), 200); got != progress+firstDone {
		t.Errorf("got %q", got)
	}
}

// TestStreamEndsItself: the owner may end a stream as it likes.
func TestStreamEndsItself(t *testing.T) {
	_, c := scriptedOwner(t, nil, func(_ *replica, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", typeSSE+"; charset=utf-8")
		io.WriteString(w, progress+"data: x")
	})
	if got := wantStatus(t, c.post(ping), 200); got != progress+"data: x" {
		t.Errorf("got %q", got)
	}
}

// TestOversize: an event that never ends is not kept.
func TestOversize(t *testing.T) {
	_, c := scriptedOwner(t, func(h *HTTP) { h.Limits.Message = 1 << 10 }, func(_ *replica, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", typeSSE)
		io.WriteString(w, progress)
		for {
			if _, err := io.WriteString(w, "data: x\n"); err != nil {
				return
			}
		}
	})
	const tooLarge = `{"code":-32603,"message":"Connection closed: message over the limit","data":{"reason":"connection_closed","cause":"message over the limit","phase":"in_flight","retryable":false}}`
	if got, want := wantStatus(t, c.post(ping), 200), progress+closedEvent("1", tooLarge); got != want {
		t.Errorf("got %.900q", got)
	}
}

// TestUnnamedEnd: a replica that breaks off a response without a link that ended.
func TestUnnamedEnd(t *testing.T) {
	_, c := scriptedOwner(t, nil, func(_ *replica, w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		panic(http.ErrAbortHandler)
	})
	wantError(t, onlyMessage(t, c.post(ping)), 1, strings.Replace(lostError, `,"event":"k3v9x2ma"`, "", 1))
}

// TestRelayStops: when the replica that passes requests on stops, each gets its one outcome.
func TestRelayStops(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	c, conn := f["a"].connectManual("2025-11-25")
	c = c.through(f["b"])
	get, post := newEvents(t, c.get()), newEvents(t, c.post(fmt.Sprintf(call, 1)))
	get.one()
	post.one()
	conntest.Recv(t, conn)
	f["b"].HTTP.Close()
	const stopped = `{"code":-32603,"message":"Connection closed: this replica was stopped while another one had the request","data":{"reason":"connection_closed","cause":"host stopped","phase":"in_flight","retryable":false}}`
	wantError(t, post.one().message(t), 1, stopped)
	post.end()
	get.end()
	wantRefusal(t, c.post(fmt.Sprintf(call, 2)), http.StatusServiceUnavailable, -32603)
	if err := conn.Send(note("notifications/x")); err != nil {
		t.Errorf("the session has ended: %v", err)
	}
}

// TestLinger waits for the POSTs that are passed on, for a while.
func TestLinger(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	f["b"].Linger(t.Context())
	c, conn := f["a"].connectManual("2025-11-25")
	c = c.through(f["b"])
	newEvents(t, c.get()).one() // a GET ends with its server
	f["b"].Linger(t.Context())
	post := newEvents(t, c.post(fmt.Sprintf(call, 1)))
	post.one()
	conntest.Recv(t, conn)
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	f["b"].Linger(short)
	if short.Err() == nil {
		t.Error("it did not wait")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f["b"].Linger(t.Context())
	}()
	conn.Send(result(1))
	wantText(t, post.one().message(t), `{"jsonrpc":"2.0","id":1,"result":"done"}`)
	conntest.Await(t, "end of Linger", done)
}

// TestRelayBacklog: what a client does not read counts where it arrives, and too much of it ends.
func TestRelayBacklog(t *testing.T) {
	for media, text := range map[string]string{typeJSON: "%s", typeSSE: "data: %s\n\n"} {
		f, c := scriptedOwner(t, nil, func(_ *replica, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", media)
			fmt.Fprintf(w, text, `{"jsonrpc":"2.0","id":1,"result":"`+strings.Repeat("x", 15<<20)+`"}`)
		})
		wantStatus(t, c.post(ping), 200)
		b := f["b"].open.backlog
		resp := c.post(ping)
		conntest.Eventually(t, "the response counts", func() bool { return b.bytes.Load() > 5<<20 })
		resp.Body.Close()
		conntest.Eventually(t, "it counts no more", func() bool { return b.bytes.Load() == 0 })
		const others = 1 << 30
		b.bytes.Add(others)
		resp, err := c.http.Do(c.request("POST", ping))
		if media == typeJSON && err == nil {
			wantError(t, onlyMessage(t, resp), 1, string(unreadable().Raw()))
		} else if err == nil {
			conntest.Eventually(t, "it is dropped", func() bool { return b.bytes.Load() == others })
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		if (err == nil) != (media == typeJSON) {
			t.Errorf("%s: %v", media, err)
		}
		b.bytes.Add(-others)
	}
}

// TestWholeEvents: however a stream is read, its whole events pass, and nothing else.
func TestWholeEvents(t *testing.T) {
	ts := newTestServer(t, nil)
	ts.init()
	l := newRelay(nil, ts.open, &bodies{})
	r, _ := http.NewRequestWithContext(t.Context(), "POST", "/mcp", nil)
	text := progress + ":\n\n" + secondDone + firstDone
	for n := range len(text) {
		p := &passing{relay: l, r: r, body: []byte(twoCalls)}
		p.held = streamBacklog{of: ts.open.backlog.join(identity.Nobody.Principal), cut: p.cut}
		broken := io.MultiReader(strings.NewReader(text[:n]), iotest.ErrReader(linkLost))
		got, err := io.ReadAll(&wholeEvents{ReadCloser: io.NopCloser(iotest.OneByteReader(broken)), p: p, max: largeBody})
		want := text[:strings.LastIndex(text[:n], "\n\n")+1]
		if want != "" {
			want += "\n"
		}
		if !strings.Contains(want, firstDone) {
			want += closedEvent("1", lostError)
		}
		if !strings.Contains(want, secondDone) {
			want += closedEvent(`"two"`, lostError)
		}
		if err != nil || string(got) != want {
			t.Fatalf("after %d bytes: %q, %v\nwant %q", n, got, err, want)
		}
		if p.held.size() != 0 {
			t.Fatalf("after %d bytes: %d still count", n, p.held.size())
		}
	}
}

// TestRelayBodies: bodies are bounded where they arrive.
func TestRelayBodies(t *testing.T) {
	f, c := scriptedOwner(t, func(h *HTTP) { h.Limits.Message = 1 << 10 }, func(*replica, http.ResponseWriter, *http.Request) { t.Error("it arrived") })
	wantRefusal(t, c.post(strings.Repeat(" ", 1<<10)+ping), http.StatusRequestEntityTooLarge, -32600)
	wantRefusal(t, c.post(ping, "Content-Type", "text/plain"), http.StatusUnsupportedMediaType, -32600)
	if n := f["a"].hops.Load(); n != 0 {
		t.Errorf("%d requests were passed on", n)
	}
}

// TestRelayAnswersOnce races the end of a link against the answers: each call has one outcome.
func TestRelayAnswersOnce(t *testing.T) {
	for i := range 30 {
		f := newFleet(t, "a b", func(_ string, h *HTTP) { h.Serve = untilDone(echo) }, nil)
		c := f["a"].connect("2025-03-26").through(f["b"])
		go func() {
			time.Sleep(time.Duration(i) * 50 * time.Microsecond)
			f["a"].cut()
		}()
		resp := c.post(`[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","id":2,"method":"b"}]`)
		if resp.StatusCode == http.StatusServiceUnavailable { // it was not sent
			continue
		}
		body := wantStatus(t, resp, 200)
		m := decode(t, body)
		if len(m.Batch) != 2 || m.Batch[0].ID != jsonrpc.IntID(1) || m.Batch[1].ID != jsonrpc.IntID(2) {
			t.Fatalf("got %s", body)
		}
	}
}

// TestDrainPassesOn: a replica that drains serves its sessions, and passes on what would begin
// something. If the next one drains, too, it does the same.
func TestDrainPassesOn(t *testing.T) {
	f := newFleet(t, "a b c", func(_ string, h *HTTP) { h.Serve = untilDone(echo) }, nil)
	a, b := f["a"], f["b"]
	c := a.connect("2025-11-25")
	a.Drain()
	wantText(t, onlyMessage(t, c.post(ping)), `{"jsonrpc":"2.0","id":1,"result":{}}`)
	modern := func() *http.Response { return a.at("/mcp").do(a.at("/mcp").modern("1", "x", "")) }
	initialize := strings.Replace(initializeText, "%", "2025-11-25", 1)
	refused := func() {
		t.Helper()
		for _, resp := range []*http.Response{modern(), a.at("/mcp").post(initialize), a.at("/sse").get()} {
			wantRefusal(t, resp, http.StatusServiceUnavailable, -32603)
			if resp.Header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		}
	}
	listen := func() *http.Response {
		return a.at("/mcp").do(a.at("/mcp").modern("1", "subscriptions/listen", `{"notifications":{}}`))
	}
	refused() // nobody is ready
	a.ready = "b"
	other := a.connect("2025-11-25")
	if !strings.HasPrefix(other.session, "b.") {
		t.Errorf("session %q, want one of b", other.session)
	}
	wantText(t, onlyMessage(t, other.post(ping)), `{"jsonrpc":"2.0","id":1,"result":{}}`)
	wantBody(t, modern(), 404, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found"}}`)
	if n := b.hops.Load(); n != 3 {
		t.Errorf("%d requests were passed on, want 3", n)
	}
	for _, resp := range []*http.Response{a.at("/sse").get(), listen()} {
		wantRefusal(t, resp, http.StatusServiceUnavailable, -32603)
	}
	wantRefusal(t, a.at("/mcp").post(ping, "Mcp-Session-Id", "a.unknown.mac"), http.StatusNotFound, -32600)
	b.Drain()
	b.ready = "c"
	wantBody(t, modern(), 404, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found"}}`)
	if third := a.connect("2025-11-25"); !strings.HasPrefix(third.session, "c.") || f["c"].hops.Load() != 2 {
		t.Errorf("session %q, %d requests at c", third.session, f["c"].hops.Load())
	}
	f["c"].Drain()
	f["c"].ready = "b"
	before := b.hops.Load() + f["c"].hops.Load()
	refused()
	if n := b.hops.Load() + f["c"].hops.Load() - before; n != 2*maxHops {
		t.Errorf("two requests had %d hops, want %d", n, 2*maxHops)
	}
	wantText(t, onlyMessage(t, other.post(ping)), `{"jsonrpc":"2.0","id":1,"result":{}}`)
	b.cut()
	wantRefusal(t, modern(), http.StatusServiceUnavailable, -32603)
	wantRefusal(t, a.at("/mcp").post(initialize), http.StatusServiceUnavailable, -32603)
}

// TestLeavesAtOnce: what a client has sent takes effect also through another replica, if it closes the connection
// right afterwards.
func TestLeavesAtOnce(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	for range 20 {
		c, conn := f["a"].connectManual("2025-11-25")
		c = c.through(f["b"])
		client, err := net.Dial("tcp", strings.TrimPrefix(f["b"].url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.request(http.MethodDelete, "").Write(client); err != nil {
			t.Fatal(err)
		}
		client.Close()
		conntest.RecvOrEnd(t, conn)
	}
}
