package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

func TestMain(m *testing.M) {
	conntest.Parallel(8)
	goleak.VerifyTestMain(m)
}

// patience is how long anything may take before a test gives up.
const patience = 20 * time.Second

const (
	initResult = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{}},"serverInfo":{"name":"fake","version":"1"}}`
	initParams = `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`
)

// A fake is a server whose answers a test writes. By default it is a good one
// with sessions and no stream outside of calls.
type fake struct {
	*httptest.Server
	t *testing.T

	mu     sync.Mutex
	seen   []string // what came, in the order in which it was accepted
	change chan struct{}
	on     map[string]func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message)
	get    http.HandlerFunc
	remove http.HandlerFunc
	any    func(w http.ResponseWriter, r *http.Request) bool // first of all; true: it has answered
	live   string                                            // the session's id
	births int

	pipes *pipes // in a bubble
}

func newFake(t *testing.T) *fake {
	f := unstarted(t)
	f.start()
	return f
}

func unstarted(t *testing.T) *fake {
	f := &fake{t: t, change: make(chan struct{}), on: map[string]func(http.ResponseWriter, *http.Request, *jsonrpc.Message){}}
	f.Server = httptest.NewUnstartedServer(f)
	f.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	return f
}

func (f *fake) start() {
	f.Start()
	f.t.Cleanup(func() { f.CloseClientConnections(); f.Close() })
}

// handle sets what answers a method.
func (f *fake) handle(method string, h func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.on[method] = h
}

func (f *fake) note(what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = append(f.seen, what)
	close(f.change)
	f.change = make(chan struct{})
}

func (f *fake) all() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen)
}

// await returns when what has been seen count times.
func (f *fake) await(what string, count int) {
	f.t.Helper()
	deadline := time.After(patience)
	for {
		f.mu.Lock()
		n := 0
		for _, s := range f.seen {
			if s == what {
				n++
			}
		}
		change := f.change
		f.mu.Unlock()
		if n >= count {
			return
		}
		select {
		case <-change:
		case <-deadline:
			f.t.Fatalf("server has seen %q, and not %d times %q", f.all(), count, what)
		}
	}
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	any := f.any
	f.mu.Unlock()
	if any != nil && any(w, r) {
		return
	}
	switch r.Method {
	case http.MethodGet:
		f.note("GET")
		if f.get == nil {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		f.get(w, r)
	case http.MethodDelete:
		f.note("DELETE " + r.Header.Get("Mcp-Session-Id"))
		if f.remove != nil {
			f.remove(w, r)
		}
	default:
		f.post(w, r)
	}
}

func (f *fake) post(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	m, err := jsonrpc.Decode(text)
	if err != nil {
		f.t.Errorf("server received %.200s: %v", text, err)
		return
	}
	f.mu.Lock()
	h, live := f.on[m.Method], f.live
	f.mu.Unlock()
	if m.Method != "initialize" && live != "" && r.Header.Get("Mcp-Session-Id") != live {
		f.note("404 " + m.Method)
		w.WriteHeader(http.StatusNotFound)
		return
	}
	switch {
	case h != nil:
		f.note(m.Method)
		h(w, r, m)
	case m.Method == "initialize":
		f.note(m.Method)
		w.Header().Set("Mcp-Session-Id", f.bear())
		reply(w, m, initResult)
	case m.IsRequest():
		f.note(m.Method)
		reply(w, m, `{}`)
	case m.IsResponse():
		f.note("response " + m.ID.String())
		w.WriteHeader(http.StatusAccepted)
	default:
		f.note(m.Method)
		w.WriteHeader(http.StatusAccepted)
	}
}

// bear begins a session and returns its id. Those before it are forgotten.
func (f *fake) bear() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.births++
	f.live = fmt.Sprintf("session-%d", f.births)
	return f.live
}

// forget makes the server forget its session.
func (f *fake) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live = "none"
}

// reply answers a request with JSON.
func reply(w http.ResponseWriter, m *jsonrpc.Message, result string) {
	w.Header().Set("Content-Type", "application/json")
	w.Write(jsonrpc.NewResult(m.ID, json.RawMessage(result)).Append(nil))
}

// stream begins an event stream with the given text.
func stream(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/event-stream")
	io.WriteString(w, text)
	http.NewResponseController(w).Flush()
}

// sseResult is the event of a result.
func sseResult(m *jsonrpc.Message, result string) string {
	return "data: " + string(jsonrpc.NewResult(m.ID, json.RawMessage(result)).Append(nil)) + "\n\n"
}

// server returns a Server for url that logs to the test's end.
func server(t *testing.T, url string) (*Server, *logs) {
	l := &logs{}
	return &Server{Name: "up", URL: url, Log: newLog(l)}, l
}

// newLog returns a logger to l, without what is for Debug.
func newLog(l *logs) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// logs is what was logged.
type logs struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// A client is one end of a session under test.
type client struct {
	jsonrpc.Conn
	t *testing.T
}

func dial(t *testing.T, s *Server) *client {
	t.Helper()
	return dialContext(t, context.Background(), s)
}

func dialContext(t *testing.T, ctx context.Context, s *Server) *client {
	t.Helper()
	c, err := s.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cl := &client{c, t}
	t.Cleanup(cl.close)
	return cl
}

func (c *client) close() {
	c.t.Helper()
	within(c.t, "Close", func() { c.Conn.Close() })
}

// within fails the test, with all stacks, when fn does not return.
func within(t *testing.T, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		panic(what + " does not return")
	}
}

// connect dials f and does the handshake.
func connect(t *testing.T, f *fake) *client {
	t.Helper()
	s, _ := server(t, f.URL)
	return shaken(t, f.reach(s))
}

// shaken dials s and does the handshake.
func shaken(t *testing.T, s *Server) *client {
	t.Helper()
	c := dial(t, s)
	c.shake()
	return c
}

func (c *client) shake() {
	c.t.Helper()
	c.request(0, "initialize", initParams)
	if m := c.recv(); m.Result == nil {
		c.t.Fatalf("initialize was answered with %s", m.Append(nil))
	}
	c.notify("notifications/initialized", "")
}

func (c *client) send(m *jsonrpc.Message) {
	c.t.Helper()
	if err := c.Send(m); err != nil {
		c.t.Fatalf("Send: %v", err)
	}
}

func (c *client) request(id int64, method, params string) {
	c.t.Helper()
	c.send(jsonrpc.NewRequest(jsonrpc.IntID(id), method, raw(params)))
}

func (c *client) notify(method, params string) {
	c.t.Helper()
	c.send(jsonrpc.NewNotification(method, raw(params)))
}

func (c *client) cancel(id int64) {
	c.t.Helper()
	c.notify("notifications/cancelled", fmt.Sprintf(`{"requestId":%d}`, id))
}

func raw(text string) json.RawMessage {
	if text == "" {
		return nil
	}
	return json.RawMessage(text)
}

type result struct {
	m   *jsonrpc.Message
	err error
}

func (c *client) next() result {
	c.t.Helper()
	got := make(chan result, 1)
	go func() {
		m, err := c.Recv()
		got <- result{m, err}
	}()
	select {
	case r := <-got:
		return r
	case <-time.After(patience):
		panic("nothing comes")
	}
}

func (c *client) recv() *jsonrpc.Message {
	c.t.Helper()
	r := c.next()
	if r.err != nil {
		c.t.Fatalf("Recv: %v", r.err)
	}
	return r.m
}

// end receives the end of the session.
func (c *client) end() *jsonrpc.ClosedError {
	c.t.Helper()
	r := c.next()
	closed, ok := errors.AsType[*jsonrpc.ClosedError](r.err)
	if !ok {
		c.t.Fatalf("Recv: %v, %v; want the end", r.m, r.err)
	}
	return closed
}

// wantError checks that m answers id with an error that has that reason, cause
// and phase.
func wantError(t *testing.T, m *jsonrpc.Message, id int64, reason, cause string, phase jsonrpc.Phase) {
	t.Helper()
	var e struct {
		Message string
		Data    jsonrpc.ErrorData
	}
	json.Unmarshal(m.Error, &e)
	want := jsonrpc.ErrorData{Reason: reason, Upstream: "up", Cause: jsonrpc.ParseCause(cause), Phase: phase,
		Retryable: phase == jsonrpc.NotSent && cause != "bad header file"}
	message := jsonrpc.InvalidResponse("up", cause).Message
	switch reason {
	case jsonrpc.ReasonOverloaded:
		message = jsonrpc.Overloaded("up").Message
	case jsonrpc.ReasonClosed:
		message = jsonrpc.ConnectionClosed(jsonrpc.CodeInternalError, "up", jsonrpc.ParseCause(cause), phase).Message
		if want.Event = e.Data.Event; !jsonrpc.IsEvent(e.Data.Event) {
			want.Event = "an event"
		}
	}
	if m.ID != jsonrpc.IntID(id) || e.Data != want || e.Message != message {
		t.Errorf("got %s\nwant for %d %q, %+v", m.Append(nil), id, message, want)
	}
}

func wantResult(t *testing.T, m *jsonrpc.Message, id int64, result string) {
	t.Helper()
	if m.ID != jsonrpc.IntID(id) || string(m.Result) != result {
		t.Errorf("got %s, want for %d the result %s", m.Append(nil), id, result)
	}
}

// block keeps a handler until its client has left.
func block(r *http.Request) { <-r.Context().Done() }

// sum returns how often text occurs in the log.
func (l *logs) sum(text string) int { return strings.Count(l.String(), text) }
