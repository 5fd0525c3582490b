package frontend

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A testServer serves an HTTP front end on a real socket, or in a bubble.
type testServer struct {
	*HTTP
	t      *testing.T
	url    string
	client *http.Client
	cut    func() // cuts all connections; nil in a bubble

	conns <-chan jsonrpc.Conn // sessions of a manual server, for the test to serve
}

// newTestServer starts a server whose sessions echo, unless setUp sets Serve.
func newTestServer(t *testing.T, setUp func(*HTTP)) *testServer {
	t.Helper()
	ts := newHTTP(t, setUp)
	server := httptest.NewServer(ts.HTTP)
	ts.url, ts.client, ts.cut = server.URL, server.Client(), server.CloseClientConnections
	t.Cleanup(func() {
		ts.HTTP.Close()
		server.Close()
		ts.wantNoneUnread()
	})
	return ts
}

// wantNoneUnread checks that all counted bytes are freed when all handlers have returned.
func (ts *testServer) wantNoneUnread() {
	if n := ts.open.backlog.bytes.Load(); n != 0 {
		ts.t.Errorf("%d bytes wait to be read, and nobody knows of them", n)
	}
}

// waiting returns the bytes that wait for connected clients, and on small streams.
func (ts *testServer) waiting() int {
	u := ts.open.backlog
	u.mu.Lock()
	defer u.mu.Unlock()
	n := int(u.bytes.Load())
	for _, s := range u.shares {
		s.mu.Lock()
		for h := range s.large {
			if h.spare.Load() {
				n -= h.size()
			}
		}
		s.mu.Unlock()
	}
	return n
}

// newBubbleServer is newTestServer inside a synctest bubble. Its connections have no buffer: a
// write waits for the read.
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
	ts.Known = func(_ *identity.Identity, name string) bool { return name == "files" }
	ts.Serve = untilDone(echo)
	ts.ServePrincipal = principal(unknown)
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

// manual passes the sessions of h to the returned channel, so that the test receives and sends.
func manual(h *HTTP) <-chan jsonrpc.Conn {
	conns := make(chan jsonrpc.Conn, 16)
	h.Serve = func(ctx context.Context, _ *identity.Identity, _ string, c jsonrpc.Conn) error {
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

// An endedConn reports when its Recv has returned the end.
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
func untilDone(serve func(jsonrpc.Conn) error) func(context.Context, *identity.Identity, string, jsonrpc.Conn) error {
	return func(ctx context.Context, _ *identity.Identity, _ string, c jsonrpc.Conn) error {
		defer c.Close()
		defer context.AfterFunc(ctx, func() { c.Close() })()
		return serve(c)
	}
}

// principal makes a ServePrincipal that ends with its ctx.
func principal(serve func(jsonrpc.Conn) error) func(context.Context, identity.Principal, string, jsonrpc.Conn) error {
	return func(ctx context.Context, who identity.Principal, upstream string, c jsonrpc.Conn) error {
		return untilDone(serve)(ctx, &identity.Identity{Principal: who}, upstream, c)
	}
}

// unknown serves modern clients like a server that knows no method.
func unknown(c jsonrpc.Conn) error {
	for {
		m, err := c.Recv()
		if err != nil {
			return err
		}
		if m.IsRequest() {
			c.Send(jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found"}))
		}
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

// initializeResult accepts the requested version; "refuse" fails.
func initializeResult(m *jsonrpc.Message) *jsonrpc.Message {
	version, _ := jsonrpc.Member(m.Params, "protocolVersion")
	if string(version) == `"refuse"` {
		return jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "no"})
	}
	return jsonrpc.NewResult(m.ID, json.RawMessage(`{"protocolVersion":`+string(version)+
		`,"capabilities":{"tools":{}},"serverInfo":{"name":"test","version":"1"}}`))
}

// only returns the one session of ts, to look at what clients cannot see.
func (ts *testServer) only() *httpSession {
	ts.t.Helper()
	d := ts.open.directory
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.byID) != 1 {
		ts.t.Fatalf("%d sessions, want 1", len(d.byID))
	}
	for _, s := range d.byID {
		return s
	}
	return nil
}

// connections returns the number of connections of all kinds, and of sessions that clients can
// still use.
func (ts *testServer) connections() (open, sessions int) {
	d := ts.open.directory
	d.mu.Lock()
	defer d.mu.Unlock()
	ts.open.mu.Lock()
	defer ts.open.mu.Unlock()
	return ts.open.counted, len(d.byID)
}

// holds returns how much a session keeps.
type holds struct{ streams, pending, stored, bytes, dropped, open int }

func (s *httpSession) holds() holds {
	s.mu.Lock()
	defer s.mu.Unlock()
	return holds{len(s.out.numbered), s.pending.Len(), len(s.out.store), s.out.bytes, s.out.dropped, s.idle.open}
}

// A secret is an Identifier with one static token.
type secret string

func (s secret) Identify(r *http.Request) (*identity.Identity, *identity.Refusal) {
	switch r.Header.Get("Authorization") {
	case "Bearer " + string(s):
		return &identity.Identity{Principal: identity.Principal{Kind: identity.Token, Name: "default"}}, nil
	case "":
		return nil, &identity.Refusal{Status: http.StatusUnauthorized, Text: "no token"}
	}
	return nil, &identity.Refusal{Status: http.StatusUnauthorized, Code: "invalid_token", Text: "a wrong token"}
}

func (s secret) Challenge(_ *http.Request, why *identity.Refusal) string {
	return "Bearer of " + why.Code
}

func (s secret) Metadata(*http.Request) ([]byte, bool) { return nil, false }

func (s secret) Proofs() identity.Proofs { return identity.Proofs{Tokens: true} }

func (s secret) Root(*http.Request) string { return "http://localhost" }

func (s secret) Asks() bool { return true }

func (s secret) Good(*identity.Identity) context.Context { return nil }
