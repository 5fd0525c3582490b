//go:build unix

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A scripted is a server on HTTP whose answers to calls a test writes.
type scripted struct {
	modern bool // only speaks the modern era
	call   func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message)
	get    http.HandlerFunc
	list   func(w http.ResponseWriter) bool // whether a list is answered; nil if it always is

	mu   sync.Mutex
	seen []string // methods; GET with the id of the last event
}

func (f *scripted) note(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, what)
}

func (f *scripted) count(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(slices.DeleteFunc(slices.Clone(f.seen), func(s string) bool { return s != what }))
}

func (f *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet && r.Header.Get("Last-Event-ID") == "":
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	case r.Method == http.MethodGet:
		f.note("GET " + r.Header.Get("Last-Event-ID"))
		f.get(w, r)
		return
	case r.Method == http.MethodDelete:
		return
	}
	body, _ := io.ReadAll(r.Body)
	m, err := jsonrpc.Decode(body)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	f.note(m.Method)
	if f.modern {
		f.serveModern(w, r, m)
		return
	}
	switch m.Method {
	case "initialize":
		w.Header().Set("Mcp-Session-Id", fmt.Sprint("s", f.count("initialize")))
		result(w, m, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"scripted","version":"1"}}`)
	case "tools/list":
		result(w, m, `{"tools":[{"name":"x","inputSchema":{"type":"object"}}]}`)
	case "tools/call":
		f.call(w, r, m)
	default:
		w.WriteHeader(http.StatusAccepted)
	}
}

func (f *scripted) serveModern(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
	switch {
	case !isModern(m):
		w.WriteHeader(http.StatusBadRequest)
	case m.Method == "server/discover":
		result(w, m, modernResult(m.Method, `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}}}`))
	case m.Method == "tools/call":
		f.call(w, r, m)
	case m.Method != "tools/list":
		w.WriteHeader(http.StatusNotFound)
	case f.list == nil || f.list(w):
		result(w, m, modernResult(m.Method, `{"tools":[{"name":"x","inputSchema":{"type":"object"}}]}`))
	}
}

func result(w http.ResponseWriter, m *jsonrpc.Message, text string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, text)
}

// events writes lines as a stream of events.
func events(w http.ResponseWriter, lines ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, strings.Join(lines, "\n")+"\n\n")
	w.(http.Flusher).Flush()
}

// newScriptedSite runs a proxy in front of a scripted server.
func newScriptedSite(t *testing.T, f *scripted) *site {
	listener := httptest.NewServer(f)
	t.Cleanup(listener.Close)
	s := emptySite(t)
	s.run("upstreams: {a: {url: " + listener.URL + "}}\n")
	return s
}

// eachEra runs a test with clients of both eras.
func eachEra(t *testing.T, test func(t *testing.T, wire string)) {
	for _, wire := range []string{"WebSocket", "modern HTTP"} {
		t.Run(wire, func(t *testing.T) { test(t, wire) })
	}
}

// D30: a stream that breaks after an event with an id is resumed.
func TestD30_Resumed(t *testing.T) { eachEra(t, resume) }

func resume(t *testing.T, wire string) {
	id := ""
	f := &scripted{
		call: func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
			id = m.ID.String()
			events(w, "id: 7", "retry: 10", "data: ")
		},
		get: func(w http.ResponseWriter, _ *http.Request) {
			events(w, "id: 8", `data: {"jsonrpc":"2.0","id":`+id+`,"result":{"content":[]}}`)
		},
	}
	c := newScriptedSite(t, f).connectOver(wire)
	if got := c.get(1, "x"); got != `{"content":[]}` {
		t.Error("got", got)
	}
	if f.count("tools/call") != 1 || f.count("GET 7") != 1 {
		t.Error("the server saw", f.seen)
	}
}

// D30: a stream that cannot be resumed is lost at once.
func TestD30_NotResumed(t *testing.T) { eachEra(t, notResume) }

func notResume(t *testing.T, wire string) {
	for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed} {
		f := &scripted{
			call: func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
				events(w, "id: 7", "retry: 10", "data: ")
			},
			get: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) },
		}
		c := newScriptedSite(t, f).connectOver(wire)
		if got := c.get(1, "x"); got != lost("a", "HTTP "+strconv.Itoa(status)) {
			t.Error("got", got)
		}
		if f.count("tools/call") != 1 || f.count("GET 7") != 1 {
			t.Error("the server saw", f.seen)
		}
	}
}

// D31: a stream ends without the response and without a way to resume it.
func TestD31_EndedWithoutResponse(t *testing.T) { eachEra(t, endWithoutResponse) }

func endWithoutResponse(t *testing.T, wire string) {
	f := &scripted{call: func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
		events(w, `data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`)
	}}
	c := newScriptedSite(t, f).connectOver(wire)
	c.say(`{"jsonrpc":"2.0","id":"level","method":"logging/setLevel","params":{"level":"info"}}`)
	c.await("level")
	if got := c.get(1, "x"); got != lost("a", "stream ended") {
		t.Error("got", got)
	}
	if f.count("tools/call") != 1 || c.heardOf("notifications/message") != 1 {
		t.Error("the server saw", f.seen)
	}
}

// D34: the server has forgotten the session. A request that it refuses for that reason is sent
// again; one on which it was working is lost.
func TestD34_ForgottenSession(t *testing.T) { eachEra(t, forgetSession) }

func forgetSession(t *testing.T, wire string) {
	began, forgotten := make(chan struct{}), make(chan struct{})
	f := &scripted{}
	f.call = func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
		switch {
		case strings.Contains(string(m.Params), "work"):
			events(w, ": at work")
			close(began)
			select {
			case <-forgotten:
			case <-r.Context().Done():
			}
		case r.Header.Get("Mcp-Session-Id") == "s1":
			w.WriteHeader(http.StatusNotFound)
		default:
			result(w, m, `{"content":[]}`)
		}
	}
	s := newScriptedSite(t, f)
	c := s.connectOver(wire)
	defer close(forgotten)
	c.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"work":1}}}`)
	<-began
	if got := c.get(2, "x"); got != `{"content":[]}` {
		t.Error("the request that was refused got", got)
	}
	if got := c.await("1"); got != lost("a", "HTTP 404") {
		t.Error("the call that was in flight got", got)
	}
	if f.count("initialize") != 2 || f.count("tools/call") != 3 {
		t.Error("the server saw", f.seen)
	}
}

// D34: a server that forgets every session is not asked again and again.
func TestD34_AlwaysForgotten(t *testing.T) { eachEra(t, forgetAlways) }

func forgetAlways(t *testing.T, wire string) {
	f := &scripted{call: func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) { w.WriteHeader(http.StatusNotFound) }}
	c := newScriptedSite(t, f).connectOver(wire)
	if got := c.get(1, "x"); got != lost("a", "HTTP 404") {
		t.Error("got", got)
	}
	if f.count("initialize") > 2 || f.count("tools/call") != 2 {
		t.Error("the server saw", f.seen)
	}
}

// mcp-proxy connect serves one remote server, of any transport, on stdio.
func TestConnect(t *testing.T) {
	t.Parallel()
	address := keepServing(t, "FAKE_X: x")
	for _, url := range []string{"http://" + address + "/mcp", "http://" + address + "/sse", "ws://" + address + "/ws"} {
		t.Run(url[:2]+url[len(url)-3:], func(t *testing.T) {
			p := startProgram(t, nil, "connect", url)
			p.say(strings.Replace(initialize, `"capabilities":{}`, `"capabilities":{"elicitation":{}}`, 1))
			if got := p.hear(); !strings.Contains(got, `"serverInfo":{"name":"fake"`) {
				t.Fatal(got)
			}
			p.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			p.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"n":9007199254740993}}}`)
			if got := p.hear(); got != `{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":{"n":9007199254740993}}}` {
				t.Error(got)
			}
			p.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"ask"}}`)
			if got := p.hear(); !strings.Contains(got, `"elicitation/create"`) {
				t.Error(got)
			}
			p.say(`{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`)
			p.in.Close()
			if got := p.hear(); got != `{"jsonrpc":"2.0","id":2,"result":{"action":"accept"}}` {
				t.Error(got)
			}
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("%v\n%s", err, p.log)
			}
		})
	}
}
