package frontend

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tmaxmax/go-sse"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// A testServer serves an HTTP front end on a real socket, or in a bubble.
type testServer struct {
	*HTTP
	t      *testing.T
	url    string
	client *http.Client

	conns <-chan jsonrpc.Conn // sessions of a manual server, for the test to serve
}

// newTestServer starts a server whose sessions echo, unless setUp sets Serve.
func newTestServer(t *testing.T, setUp func(*HTTP)) *testServer {
	t.Helper()
	ts := newHTTP(t, setUp)
	server := httptest.NewServer(ts.HTTP)
	ts.url, ts.client = server.URL, server.Client()
	t.Cleanup(func() {
		ts.HTTP.Close()
		server.Close()
	})
	return ts
}

// newBubbleServer is newTestServer for the inside of a synctest bubble. Its
// connections hold nothing: a write waits for the read.
func newBubbleServer(t *testing.T, setUp func(*HTTP)) *testServer {
	t.Helper()
	ts := newHTTP(t, setUp)
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	transport := &http.Transport{DialContext: l.dial}
	server := &http.Server{Handler: ts.HTTP}
	ts.url, ts.client = "http://localhost", &http.Client{Transport: transport}
	go server.Serve(l)
	t.Cleanup(func() {
		ts.HTTP.Close()
		server.Close()
		transport.CloseIdleConnections()
	})
	return ts
}

func newHTTP(t *testing.T, setUp func(*HTTP)) *testServer {
	ts := &testServer{HTTP: &HTTP{}, t: t}
	ts.Known = func(name string) bool { return name == "files" }
	ts.Serve = untilDone(echo)
	if setUp != nil {
		setUp(ts.HTTP)
	}
	return ts
}

// A pipeListener accepts in-memory connections.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

// manual makes the sessions of h come out of the returned channel, for the test
// to receive and send itself.
func manual(h *HTTP) <-chan jsonrpc.Conn {
	conns := make(chan jsonrpc.Conn, 16)
	h.Serve = func(ctx context.Context, _ string, c jsonrpc.Conn) error {
		defer c.Close()
		ended := &endedConn{Conn: c, done: make(chan struct{})}
		conns <- ended
		select {
		case <-ended.done:
		case <-ctx.Done():
		}
		return jsonrpc.ErrClosed
	}
	return conns
}

// newManualServer starts a server whose sessions the test serves.
func newManualServer(t *testing.T, setUp func(*HTTP)) *testServer {
	t.Helper()
	var conns <-chan jsonrpc.Conn
	ts := newTestServer(t, func(h *HTTP) {
		conns = manual(h)
		if setUp != nil {
			setUp(h)
		}
	})
	ts.conns = conns
	return ts
}

// An endedConn tells when its Recv has returned the end.
type endedConn struct {
	jsonrpc.Conn
	done chan struct{}
	once sync.Once
}

func (c *endedConn) Recv() (*jsonrpc.Message, error) {
	m, err := c.Conn.Recv()
	if err != nil {
		c.once.Do(func() { close(c.done) })
	}
	return m, err
}

// untilDone makes a Serve end with its ctx.
func untilDone(serve func(jsonrpc.Conn) error) func(context.Context, string, jsonrpc.Conn) error {
	return func(ctx context.Context, _ string, c jsonrpc.Conn) error {
		defer c.Close()
		defer context.AfterFunc(ctx, func() { c.Close() })()
		return serve(c)
	}
}

// echo serves a session whose results are the params.
func echo(c jsonrpc.Conn) error {
	for {
		m, err := c.Recv()
		if err != nil {
			return err
		}
		if reply := echoed(m); reply != nil {
			c.Send(reply)
		}
	}
}

func echoed(m *jsonrpc.Message) *jsonrpc.Message {
	switch {
	case m.Method == "initialize":
		return initializeResult(m)
	case !m.IsRequest() || m.Method == "never":
		return nil
	case m.Params == nil:
		return jsonrpc.NewResult(m.ID, json.RawMessage("{}"))
	}
	return jsonrpc.NewResult(m.ID, m.Params)
}

// initializeResult agrees to the version that was asked for; "refuse" fails.
func initializeResult(m *jsonrpc.Message) *jsonrpc.Message {
	version, _ := jsonrpc.Member(m.Params, "protocolVersion")
	if string(version) == `"refuse"` {
		return jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "no"})
	}
	return jsonrpc.NewResult(m.ID, json.RawMessage(`{"protocolVersion":`+string(version)+
		`,"capabilities":{"tools":{}},"serverInfo":{"name":"test","version":"1"}}`))
}

// A testClient speaks HTTP to a testServer, by hand.
type testClient struct {
	t       *testing.T
	http    *http.Client
	url     string
	session string
	version string
}

func (ts *testServer) at(path string) *testClient {
	return &testClient{t: ts.t, http: ts.client, url: ts.url + path}
}

// connect initializes a session of ts, whose Serve must answer.
func (ts *testServer) connect(version string) *testClient {
	ts.t.Helper()
	c := ts.at("/mcp")
	c.initialize(version)
	return c
}

// connectManual initializes a session of ts and returns both ends.
func (ts *testServer) connectManual(version string) (*testClient, jsonrpc.Conn) {
	ts.t.Helper()
	c := ts.at("/mcp")
	var conn jsonrpc.Conn
	during(ts.t, func() { c.initialize(version) }, func() {
		conn = await(ts.t, "a session", ts.conns)
		m, err := conn.Recv()
		if err != nil {
			ts.t.Errorf("Recv of initialize: %v", err)
			return
		}
		conn.Send(initializeResult(m))
	})
	return c, conn
}

const (
	initializeParams = `"params":{"protocolVersion":"%","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`
	initializeText   = `{"jsonrpc":"2.0","id":"init","method":"initialize",` + initializeParams + `}`
)

func (c *testClient) initialize(version string) {
	c.t.Helper()
	resp := c.post(strings.Replace(initializeText, "%", version, 1))
	c.session = resp.Header.Get("Mcp-Session-Id")
	c.version = version
	m := onlyMessage(c.t, resp)
	if m.Result == nil || c.session == "" {
		c.t.Fatalf("initialize: %d, session %q: %s", resp.StatusCode, c.session, m.Append(nil))
	}
}

// request returns a request as a good client makes it; set changes its headers,
// as name, value pairs, where "" deletes.
func (c *testClient) request(method, body string, set ...string) *http.Request {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), method, c.url, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.session != "" {
		req.Header.Set("Mcp-Session-Id", c.session)
		req.Header.Set("MCP-Protocol-Version", c.version)
	}
	for i := 0; i < len(set); i += 2 {
		if set[i] == "Host" {
			req.Host = set[i+1]
		} else if set[i+1] == "" {
			req.Header.Del(set[i])
		} else {
			req.Header.Set(set[i], set[i+1])
		}
	}
	return req
}

// do sends a request. The body of the response is closed with the test.
func (c *testClient) do(req *http.Request) *http.Response {
	c.t.Helper()
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Fatalf("%s %s: %v", req.Method, req.URL.Path, err)
	}
	c.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func (c *testClient) post(body string, set ...string) *http.Response {
	c.t.Helper()
	return c.do(c.request(http.MethodPost, body, set...))
}

func (c *testClient) get(set ...string) *http.Response {
	c.t.Helper()
	return c.do(c.request(http.MethodGet, "", set...))
}

func (c *testClient) delete() *http.Response {
	c.t.Helper()
	return c.do(c.request(http.MethodDelete, ""))
}

// wantStatus checks a status and returns the body.
func wantStatus(t *testing.T, resp *http.Response, status int) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	if resp.StatusCode != status || err != nil {
		t.Errorf("%s %s: %d %s (%v), want %d", resp.Request.Method, resp.Request.URL.Path, resp.StatusCode, body, err, status)
	}
	return string(body)
}

// wantRefusal checks a status and that the body is an error without an id.
func wantRefusal(t *testing.T, resp *http.Response, status, code int) {
	t.Helper()
	body := wantStatus(t, resp, status)
	var got struct {
		ID    json.RawMessage
		Error struct{ Code int }
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil || got.ID != nil || got.Error.Code != code {
		t.Errorf("body %q (%v), want error %d without an id", body, err, code)
	}
}

// onlyMessage returns the one message of a response, JSON or events.
func onlyMessage(t *testing.T, resp *http.Response) *jsonrpc.Message {
	t.Helper()
	if mediaType(resp.Header.Get("Content-Type")) == typeSSE {
		all := newEvents(t, resp).rest()
		if len(all) == 0 {
			t.Fatal("the stream ended without a message")
		}
		return all[len(all)-1].message(t)
	}
	return decode(t, wantStatus(t, resp, http.StatusOK))
}

func decode(t *testing.T, text string) *jsonrpc.Message {
	t.Helper()
	m, err := jsonrpc.Decode([]byte(text))
	if err != nil {
		t.Fatalf("message %q: %v", text, err)
	}
	return m
}

// wantText compares a message with its JSON text.
func wantText(t *testing.T, m *jsonrpc.Message, want string) {
	t.Helper()
	if got := string(m.Append(nil)); got != want {
		t.Errorf("message %s\nwant    %s", got, want)
	}
}

// events reads an event stream with a library that is not ours.
type events struct {
	t     *testing.T
	next  func() (sse.Event, error, bool)
	close func() // drops the connection
}

type testEvent struct{ sse.Event }

func newEvents(t *testing.T, resp *http.Response) *events {
	t.Helper()
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || got != typeSSE {
		body, _ := io.ReadAll(resp.Body)
		t.Fatalf("status %d, Content-Type %q, want an event stream; %s", resp.StatusCode, got, body)
	}
	next, stop := iter.Pull2(iter.Seq2[sse.Event, error](sse.Read(resp.Body, &sse.ReadConfig{MaxEventSize: 32 << 20})))
	t.Cleanup(func() {
		resp.Body.Close()
		stop()
	})
	return &events{t, next, func() { resp.Body.Close() }}
}

// one returns the next event.
func (e *events) one() testEvent {
	e.t.Helper()
	ev, err, ok := e.next()
	if err != nil || !ok {
		e.t.Fatalf("the stream ended (%v), want an event", err)
	}
	return testEvent{ev}
}

// rest returns all events until the stream ends.
func (e *events) rest() (all []testEvent) {
	for {
		ev, err, ok := e.next()
		if !ok || err != nil {
			return all
		}
		all = append(all, testEvent{ev})
	}
}

// end checks that the stream ends here.
func (e *events) end() {
	e.t.Helper()
	if ev, err, ok := e.next(); ok && err == nil {
		e.t.Errorf("another event %+v, want the end", ev)
	}
}

func (e testEvent) message(t *testing.T) *jsonrpc.Message {
	t.Helper()
	return decode(t, e.Data)
}

// await receives from a channel with patience.
func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
		panic("unreachable")
	}
}

// during runs the second function while the first runs, and waits for both.
func during(t *testing.T, first, second func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		second()
	}()
	first()
	await(t, "end of the other side", done)
}

// recv returns the next message of a Conn, which must be there soon.
func recv(t *testing.T, c jsonrpc.Conn) *jsonrpc.Message {
	t.Helper()
	m, err := recvOrEnd(t, c)
	if err != nil {
		t.Fatalf("Recv: %v", err)
	}
	return m
}

func recvOrEnd(t *testing.T, c jsonrpc.Conn) (*jsonrpc.Message, error) {
	t.Helper()
	type result struct {
		m   *jsonrpc.Message
		err error
	}
	got := make(chan result, 1)
	go func() {
		m, err := c.Recv()
		got <- result{m, err}
	}()
	r := await(t, "message", got)
	return r.m, r.err
}

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// only returns the one session of ts, to look at what no client can see.
func (ts *testServer) only() *session {
	ts.t.Helper()
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if len(ts.sessions) != 1 {
		ts.t.Fatalf("%d sessions, want 1", len(ts.sessions))
	}
	for _, s := range ts.sessions {
		return s
	}
	return nil
}

// holds is how much a session remembers.
type holds struct{ streams, pending, stored, bytes, dropped, open int }

func (s *session) holds() holds {
	s.mu.Lock()
	defer s.mu.Unlock()
	return holds{len(s.streams), len(s.pending), len(s.store), s.storeBytes, s.dropped, s.open}
}
