package frontend

import (
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"strings"
	"testing"

	"github.com/tmaxmax/go-sse"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

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
	return ts.connectManualAt("/mcp", version)
}

func (ts *testServer) connectManualAt(path, version string) (*testClient, jsonrpc.Conn) {
	ts.t.Helper()
	c := ts.at(path)
	var conn jsonrpc.Conn
	conntest.During(ts.t, func() { c.initialize(version) }, func() {
		conn = conntest.Await(ts.t, "a session", ts.conns)
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

// request returns a well-formed request; set changes its headers, as name, value pairs, where ""
// deletes.
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

// events reads an event stream with an independent library.
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
