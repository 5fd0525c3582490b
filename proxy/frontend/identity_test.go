package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// People are an Identifier that identifies clients by token.
type people map[string]*identity.Identity

func (p people) Identify(r *http.Request) (*identity.Identity, *identity.Refusal) {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	who := p[token]
	switch {
	case token == "":
		return nil, &identity.Refusal{Status: 401, Text: "no token"}
	case strings.HasPrefix(token, "4") || strings.HasPrefix(token, "5"):
		why := &identity.Refusal{Text: "as it asked for", RetryAfter: 1500 * time.Millisecond}
		fmt.Sscan(token, &why.Status)
		return nil, why
	case who == nil:
		return nil, &identity.Refusal{Status: 401, Code: "invalid_token", Text: "nobody has this token"}
	case !who.Expires.IsZero() && !time.Now().Before(who.Expires):
		return nil, &identity.Refusal{Status: 401, Code: "invalid_token", Text: "the token has expired"}
	}
	return who, nil
}

func (people) Challenge(r *http.Request, why *identity.Refusal) string {
	if why.Status == 429 || why.Status == 503 {
		return ""
	}
	return fmt.Sprintf("Bearer path=%s error=%s scope=%s", r.URL.Path, why.Code, why.Scopes)
}

func (people) Asks() bool { return true }

func (people) Good(*identity.Identity) context.Context { return nil }

func (people) Metadata(r *http.Request) ([]byte, bool) {
	return []byte(`{"resource":"` + r.URL.Path + `"}`), !strings.HasSuffix(r.URL.Path, "/unknown")
}

func (people) Proofs() identity.Proofs { return identity.Proofs{Tokens: true} }

func (people) Root(*http.Request) string { return "https://mcp.Example.com/team" }

func person(name string, scopes ...string) *identity.Identity {
	return &identity.Identity{Principal: identity.Principal{Kind: identity.JWT, Issuer: "i", Name: name}, Scopes: scopes}
}

// until returns who with an expiry.
func until(who *identity.Identity, d time.Duration) *identity.Identity {
	who.Expires = time.Now().Add(d)
	return who
}

// as returns c with a token in each request.
func (c *testClient) as(token string) *testClient {
	mine, to := *c, c.http.Transport
	if other, ok := to.(bearing); ok {
		to = other.RoundTripper
	}
	mine.http = &http.Client{Transport: bearing{to, token}}
	return &mine
}

type bearing struct {
	http.RoundTripper
	token string
}

func (b bearing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.RoundTripper.RoundTrip(r)
}

// TestRefusals: on every path a refusal has its status, its challenge, and an error with the
// reason, and begins nothing.
func TestRefusals(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) { h.Guard.Clients, h.Guard.AllowedOrigins = people{}, []string{"https://app.example"} })
	for status, code := range map[int]int{400: -32600, 401: -32600, 403: -32600, 429: -32603, 503: -32603} {
		for _, path := range []string{"POST /mcp", "GET /mcp", "DELETE /mcp", "POST /mcp/files", "GET /sse", "POST /message", "GET /ws", "GET /ws/files"} {
			method, path, _ := strings.Cut(path, " ")
			c := ts.at(path).as(fmt.Sprint(status))
			resp := c.do(c.request(method, "", "Origin", "https://app.example", "Connection", "Upgrade", "Upgrade", "websocket"))
			wantRefusal(t, resp, status, code)
			challenge, retry := fmt.Sprintf("Bearer path=%s error= scope=[]", path), ""
			switch status {
			case 429:
				challenge, retry = "", "2"
			case 503:
				challenge, retry = "", "5"
			}
			if h := resp.Header; h.Get("WWW-Authenticate") != challenge || h.Get("Retry-After") != retry ||
				h.Get("Access-Control-Allow-Origin") != "https://app.example" ||
				!strings.Contains(h.Get("Access-Control-Expose-Headers"), "WWW-Authenticate") {
				t.Errorf("%s %s: %d %v", method, path, status, h)
			}
		}
	}
	if open, sessions := ts.connections(); open+sessions != 0 {
		t.Errorf("%d connections, %d sessions", open, sessions)
	}
}

// TestMetadata: everybody may read the metadata, from pages of any origin, but not under a foreign
// Host.
func TestMetadata(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) { h.Guard.Clients = people{} })
	const root = "/.well-known/oauth-protected-resource"
	for _, path := range []string{root, root + "/mcp", root + "/mcp/files"} {
		c := ts.at(path)
		resp := c.get("Origin", "https://any.example")
		wantBody(t, resp, 200, `{"resource":"`+path+`"}`)
		if got := resp.Header.Get("Access-Control-Allow-Origin"); got != "*" {
			t.Errorf("%s: Access-Control-Allow-Origin %q", path, got)
		}
		wantStatus(t, c.do(c.request("HEAD", "")), 200)
		wantStatus(t, c.do(c.request("POST", "{}")), 405)
		wantStatus(t, c.get("Host", "evil.example"), 403)
		resp = c.do(c.request("OPTIONS", "", "Origin", "https://any.example", "Access-Control-Request-Headers", "mcp-protocol-version"))
		wantStatus(t, resp, 204)
		if !strings.Contains(resp.Header.Get("Access-Control-Allow-Headers"), "MCP-Protocol-Version") {
			t.Errorf("preflight: %v", resp.Header)
		}
	}
	wantStatus(t, ts.at(root+"/unknown").get(), 404)
	wantStatus(t, ts.at(root+"x").get(), 401)
	wantStatus(t, newTestServer(t, nil).at(root).get(), 404) // nothing is asked for
}

// TestEachMessageSaysWho: a session belongs to a principal, and each message has the identity of
// its request.
func TestEachMessageSaysWho(t *testing.T) {
	all := people{"old": person("a", "read"), "new": person("a", "read", "write"), "other": person("b")}
	ts := newManualServer(t, func(h *HTTP) { h.Guard.Clients = all })
	from := func(conn jsonrpc.Conn, want string) {
		t.Helper()
		if m := conntest.Recv(t, conn); m.From != all[want] {
			t.Errorf("%s is from %v, want %s", m.Append(nil), m.From, want)
		}
	}
	c := ts.at("/mcp").as("old")
	var conn jsonrpc.Conn
	conntest.During(t, func() { c.initialize("2025-03-26") }, func() {
		conn = conntest.Await(t, "a session", ts.conns)
		m := conntest.Recv(t, conn)
		if m.From != all["old"] {
			t.Errorf("initialize is from %v", m.From)
		}
		conn.Send(initializeResult(m))
	})
	wantStatus(t, c.post(`{"jsonrpc":"2.0","method":"one"}`), 202)
	from(conn, "old")
	wantStatus(t, c.as("new").post(`[{"jsonrpc":"2.0","method":"two"},{"jsonrpc":"2.0","method":"three"},{"jsonrpc":"2.0","id":9,"result":{}}]`), 202)
	from(conn, "new")
	from(conn, "new")
	from(conn, "new")

	_, ev := ts.asLegacy("old")
	message := ts.at("/message?sessionId=" + ev.session)
	conn = conntest.Await(t, "a session", ts.conns)
	wantStatus(t, message.as("old").post(`{"jsonrpc":"2.0","method":"one"}`), 202)
	from(conn, "old")
	wantStatus(t, message.as("new").post(`{"jsonrpc":"2.0","method":"two"}`), 202)
	from(conn, "new")
	wantRefusal(t, message.as("other").post(`{"jsonrpc":"2.0","method":"three"}`), 404, -32600)
	wantRefusal(t, message.as("other").post(`{"jsonrpc":"2.0","id":1,"result":{}}`), 404, -32600)
	wantStatus(t, message.as("new").post(`{"jsonrpc":"2.0","method":"four"}`), 202)
	from(conn, "new")
}

// A legacyStream is the stream of a session of 2024-11-05.
type legacyStream struct {
	*events
	session string
}

func (ts *testServer) asLegacy(token string) (*testClient, legacyStream) {
	ts.t.Helper()
	c := ts.at("/sse").as(token)
	ev := newEvents(ts.t, c.get())
	_, session, _ := strings.Cut(ev.one().Data, "=")
	return c, legacyStream{ev, session}
}

// TestModernFrom: requests of one principal share a connection, and each has its own identity.
func TestModernFrom(t *testing.T) {
	all := people{"old": person("a", "read"), "new": person("a", "read", "write"), "other": person("b")}
	ts := newPrincipalServer(t, func(h *HTTP) { h.Guard.Clients = all })
	ask := func(token string) {
		c := ts.at("/mcp").as(token)
		c.send(c.modern("1", "x", ""))
	}
	ask("old")
	conn := conntest.Await(t, "connection", ts.conns)
	if m := conntest.Recv(t, conn); m.From != all["old"] {
		t.Errorf("from %v", m.From)
	}
	ask("new")
	if m := conntest.Recv(t, conn); m.From != all["new"] {
		t.Errorf("from %v", m.From)
	}
	ask("other")
	if m := conntest.Recv(t, conntest.Await(t, "a connection of its own", ts.conns)); m.From != all["other"] {
		t.Errorf("from %v", m.From)
	}
}

// TestSessionOfAnother: another principal cannot use the id of a session or an event on any path,
// and the session's client does not notice.
func TestSessionOfAnother(t *testing.T) {
	ts := newManualServer(t, func(h *HTTP) { h.Guard.Clients = people{"a": person("a"), "b": person("b")} })
	c := ts.at("/mcp").as("a")
	var conn jsonrpc.Conn
	conntest.During(t, func() { c.initialize("2025-11-25") }, func() {
		conn = conntest.Await(t, "a session", ts.conns)
		conn.Send(initializeResult(conntest.Recv(t, conn)))
	})
	conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(7), "elicitation/create", nil))
	b := c.as("b")
	wantRefusal(t, b.get(), 404, -32600)
	wantRefusal(t, b.get("Last-Event-ID", "0-0"), 404, -32600)
	wantRefusal(t, b.delete(), 404, -32600)
	wantRefusal(t, b.post(`{"jsonrpc":"2.0","id":7,"result":{"action":"accept"}}`), 404, -32600)
	wantRefusal(t, b.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`), 404, -32600)
	wantRefusal(t, b.post(fmt.Sprintf(call, 1)), 404, -32600)
	b.url = ts.url + "/message?sessionId=" + c.session
	wantRefusal(t, b.post(`{"jsonrpc":"2.0","method":"x"}`), 404, -32600)

	ev := newEvents(t, c.get())
	if got := ev.one(); got.LastEventID != "0-0" { // primed
		t.Errorf("got %+v", got)
	}
	wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","id":7,"method":"elicitation/create"}`)
	wantStatus(t, c.post(`{"jsonrpc":"2.0","id":7,"result":{}}`), 202)
	wantText(t, conntest.Recv(t, conn), `{"jsonrpc":"2.0","id":7,"result":{}}`) // and nothing before
}

// refused returns a refusal by a policy.
func refused(id jsonrpc.ID, why *identity.Refusal) *jsonrpc.Message {
	m := jsonrpc.NewError(id, &jsonrpc.Error{Code: -32603, Message: why.Text})
	m.Refused = why
	return m
}

var (
	noScope = &identity.Refusal{Status: 403, Code: "insufficient_scope", Text: "needs more", Scopes: []string{"files.write"}}
	tooFast = &identity.Refusal{Status: 429, Text: "slower", RetryAfter: 2100 * time.Millisecond}
)

// wantRefused checks an HTTP response with a refusal by a policy.
func wantRefused(t *testing.T, resp *http.Response, why *identity.Refusal) {
	t.Helper()
	wantBody(t, resp, why.Status, `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"`+why.Text+`"}}`)
	challenge, retry := "Bearer path=/mcp error=insufficient_scope scope=[files.write]", ""
	if why.Status == 429 {
		challenge, retry = "", "3"
	}
	if h := resp.Header; h.Get("WWW-Authenticate") != challenge || h.Get("Retry-After") != retry {
		t.Errorf("%d: %v", why.Status, h)
	}
}

// TestRefusedAnswers: a refusal by a policy has its status, in both eras, so that HTTP clients can
// step up or wait. In a stream that has begun, and in a batch, there is only the error.
func TestRefusedAnswers(t *testing.T) {
	for _, why := range []*identity.Refusal{noScope, tooFast} {
		ts := newManualServer(t, func(h *HTTP) { h.Guard.Clients = people{"a": person("a")} })
		ts.HTTP.ServePrincipal = principal(func(c jsonrpc.Conn) error {
			for {
				m, err := c.Recv()
				if err != nil {
					return err
				}
				if m.Method == "late" {
					n := note("notifications/progress")
					n.Related = m.ID
					c.Send(n)
				}
				c.Send(refused(m.ID, why))
			}
		})
		c := ts.at("/mcp").as("a")
		wantRefused(t, c.do(c.modern("1", "tools/call", `"name":"x"`)), why)
		late := newEvents(t, c.do(c.modern("1", "late", "")))
		late.one()
		if m := late.one().message(t); m.Error == nil {
			t.Errorf("%s", m.Append(nil))
		}
		late.end()

		var conn jsonrpc.Conn
		conntest.During(t, func() { c.initialize("2025-03-26") }, func() {
			conn = conntest.Await(t, "a session", ts.conns)
			conn.Send(initializeResult(conntest.Recv(t, conn)))
		})
		serve := func(answers ...*jsonrpc.Message) func() {
			return func() {
				for _, m := range answers {
					if m.IsResponse() {
						conntest.Recv(t, conn)
					}
				}
				for _, m := range answers {
					conn.Send(m)
				}
			}
		}
		one := jsonrpc.IntID(1)
		conntest.During(t, func() { wantRefused(t, c.post(fmt.Sprintf(call, 1)), why) }, serve(refused(one, why)))
		conntest.During(t, func() {
			resp := c.post("[" + fmt.Sprintf(call, 1) + "," + fmt.Sprintf(call, 2) + "]")
			if body := wantStatus(t, resp, 200); strings.Count(body, why.Text) != 1 || resp.Header.Get("WWW-Authenticate") != "" {
				t.Errorf("a batch: %s", body)
			}
		}, serve(refused(one, why), result(2)))
		conntest.During(t, func() {
			ev := newEvents(t, c.post(fmt.Sprintf(call, 1)))
			ev.one()
			if m := ev.one().message(t); m.Error == nil {
				t.Errorf("%s", m.Append(nil))
			}
			ev.end()
		}, serve(related(note("notifications/progress"), 1), refused(one, why)))
	}
}

// TestRefusedInitialize: there is no session afterwards.
func TestRefusedInitialize(t *testing.T) {
	ts := newManualServer(t, func(h *HTTP) { h.Guard.Clients = people{"a": person("a")} })
	c := ts.at("/mcp").as("a")
	conntest.During(t, func() {
		resp := c.post(strings.NewReplacer("%", "2025-11-25", `"init"`, "1").Replace(initializeText))
		wantRefused(t, resp, noScope)
		if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
			t.Errorf("session %s", id)
		}
	}, func() {
		conn := conntest.Await(t, "a session", ts.conns)
		conn.Send(refused(conntest.Recv(t, conn).ID, noScope))
		if m, err := conn.Recv(); err == nil {
			t.Errorf("received %s", m.Append(nil))
		}
	})
}

// TestRefusedOnAWebSocket: WebSockets have no statuses, and neither has HTTP+SSE.
func TestRefusedOnAWebSocket(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) {
		h.Serve = untilDone(func(c jsonrpc.Conn) error {
			for {
				m, err := c.Recv()
				if err != nil {
					return err
				}
				c.Send(refused(m.ID, noScope))
			}
		})
	})
	const want = `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"needs more"}}`
	ws := dialWS(t, ts.wsURL("/ws"))
	ws.WriteMessage(websocket.TextMessage, []byte(fmt.Sprintf(call, 1)))
	if _, text, err := ws.ReadMessage(); string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
	c, ev := ts.connectLegacy()
	wantStatus(t, c.post(fmt.Sprintf(call, 1)), 202)
	wantText(t, ev.one().message(t), want)
}

// TestAdmit: Admit is called at the beginning of each connection, and leave once at its end.
func TestAdmit(t *testing.T) {
	var asked, open atomic.Int32
	var full atomic.Bool
	ts := newTestServer(t, func(h *HTTP) {
		h.Guard.Clients = people{"a": person("a")}
		h.Admit = func(who *identity.Identity) (func(), *identity.Refusal) {
			asked.Add(1)
			if who.Name != "a" {
				t.Errorf("asked for %v", who)
			}
			if full.Load() {
				return nil, tooFast
			}
			open.Add(1)
			return func() { open.Add(-1) }, nil
		}
	})
	expect := func(what string, wantAsked, wantOpen int32) {
		t.Helper()
		conntest.Eventually(t, what, func() bool { return open.Load() == wantOpen })
		if got := asked.Load(); got != wantAsked {
			t.Errorf("%s: asked %d times, want %d", what, got, wantAsked)
		}
	}
	c := ts.at("/mcp").as("a")
	c.initialize("2025-11-25")
	expect("a session", 1, 1)
	onlyMessage(t, c.post(fmt.Sprintf(call, 1)))
	wantStatus(t, c.delete(), 204)
	expect("the end of a session", 1, 0)

	modern := ts.at("/mcp").as("a")
	for range 2 {
		wantStatus(t, modern.do(modern.modern("1", "x", "")), 404)
	}
	expect("a principal's connection", 2, 1)
	_, ev := ts.asLegacy("a")
	expect("HTTP+SSE", 3, 2)
	ev.close()
	expect("the end of HTTP+SSE", 3, 1)
	header := http.Header{"Authorization": {"Bearer a"}}
	ws, _, err := websocket.DefaultDialer.Dial(ts.wsURL("/ws"), header)
	if err != nil {
		t.Fatal(err)
	}
	expect("a WebSocket", 4, 2)
	ws.Close()
	expect("the end of a WebSocket", 4, 1)
	wantStatus(t, ts.at("/ws").as("a").get(), 400)
	expect("no WebSocket", 5, 1)

	full.Store(true)
	for _, resp := range []*http.Response{
		c.post(strings.Replace(initializeText, "%", "2025-11-25", 1), "Mcp-Session-Id", ""),
		ts.at("/sse").as("a").get(),
		wantNoUpgrade(t, ts.wsURL("/ws"), 429, header),
	} {
		if resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "3" {
			t.Errorf("%s: %d %v", resp.Request.URL, resp.StatusCode, resp.Header)
		}
	}
	wantStatus(t, modern.do(modern.modern("1", "x", "")), 404) // it has begun before
	expect("no room", 8, 1)
	if open, _ := ts.connections(); open != 1 {
		t.Errorf("%d connections count, want 1", open)
	}
	ts.HTTP.Close()
	if open.Load() != 0 {
		t.Error("not all ends were told when it closed")
	}
}

// TestExpiredWebSocket: the session ends with a cause, open requests get the error for it, and the
// close frame has the reason.
func TestExpiredWebSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause error
		ts := newBubbleServer(t, func(h *HTTP) {
			h.Guard.Clients = people{"a": until(person("a"), 30*time.Second)}
			h.Serve = func(ctx context.Context, _ *identity.Identity, _ string, c jsonrpc.Conn) error {
				<-ctx.Done()
				cause = context.Cause(ctx)
				c.Send(note("last"))
				c.Close()
				return jsonrpc.Closed(cause)
			}
		})
		conn := ts.upgrade("Authorization: Bearer a")
		start := time.Now()
		text, err := io.ReadAll(conn)
		const ping, message, end = "\x89\x00", "\x81\x21" + `{"jsonrpc":"2.0","method":"last"}`, "\x88\x0f\x03\xf0token expired"
		if err != nil || string(text) != ping+message+end {
			t.Errorf("got %q, %v", text, err)
		}
		if took := time.Since(start); took < 30*time.Second || took > 32*time.Second {
			t.Errorf("after %v", took)
		}
		ts.HTTP.Close()
		if closed, ok := errors.AsType[*jsonrpc.ClosedError](cause); !ok || closed.Cause.Kind != jsonrpc.KindExpired || jsonrpc.CauseOf(jsonrpc.Closed(cause)) != jsonrpc.CauseTokenExpired.String() {
			t.Errorf("cause %v", cause)
		}
	})
}

// TestExpiredStreams: the stream of a GET ends with the token. The session waits for the next valid
// token, and so do later messages; a response in progress is written to its end. A session of
// HTTP+SSE ends with its stream.
func TestExpiredStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conns <-chan jsonrpc.Conn
		all := people{"short": until(person("a"), time.Minute), "long": until(person("a"), time.Hour)}
		ts := newBubbleServer(t, func(h *HTTP) {
			h.Guard.Clients = all
			conns = manual(h)
		})
		c := ts.at("/mcp").as("short")
		go func() {
			conn := <-conns
			m, _ := conn.Recv()
			conn.Send(initializeResult(m))
			m, _ = conn.Recv()
			n := note("notifications/progress")
			n.Related = m.ID
			conn.Send(n)
			time.Sleep(2 * time.Minute)
			conn.Send(note("notifications/meanwhile"))
			conn.Send(result(1))
		}()
		c.initialize("2025-11-25")
		start := time.Now()
		get := newEvents(t, c.get())
		get.one()
		post := newEvents(t, c.post(fmt.Sprintf(call, 1)))
		answered := make(chan []testEvent, 1)
		go func() { answered <- post.rest() }() // a client that does not read is cut off
		get.end()
		if took := time.Since(start); took != time.Minute {
			t.Errorf("the stream of the GET ended after %v", took)
		}
		wantRefusal(t, c.get(), 401, -32600)
		wantRefusal(t, c.post(fmt.Sprintf(call, 2)), 401, -32600)
		rest := <-answered
		wantText(t, rest[len(rest)-1].message(t), `{"jsonrpc":"2.0","id":1,"result":"done"}`)
		again := newEvents(t, c.as("long").get("Last-Event-ID", "0-0"))
		wantText(t, again.one().message(t), `{"jsonrpc":"2.0","method":"notifications/meanwhile"}`)
		again.close()

		all["short"] = until(person("a"), time.Minute)
		start = time.Now()
		_, old := ts.asLegacy("short")
		conn := <-conns
		old.end()
		if took := time.Since(start); took != time.Minute {
			t.Errorf("HTTP+SSE ended after %v", took)
		}
		if _, err := conn.Recv(); !errors.Is(err, jsonrpc.ErrClosed) {
			t.Errorf("Recv returned %v", err)
		}
		message := ts.at("/message?sessionId=" + old.session).as("long")
		wantRefusal(t, message.post(`{"jsonrpc":"2.0","method":"x"}`), 404, -32600)
	})
}

// TestExpiredSSE: when the token of a session of HTTP+SSE ends, Serve can still answer what is in flight, as on a WebSocket.
func TestExpiredSSE(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := make(chan error, 1)
		ts := newBubbleServer(t, func(h *HTTP) {
			h.Guard.Clients = people{"a": until(person("a"), time.Minute)}
			h.Serve = func(ctx context.Context, _ *identity.Identity, _ string, c jsonrpc.Conn) error {
				<-ctx.Done()
				cause <- context.Cause(ctx)
				c.Send(note("last"))
				return jsonrpc.Closed(context.Cause(ctx))
			}
		})
		start := time.Now()
		_, ev := ts.asLegacy("a")
		wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","method":"last"}`)
		ev.end()
		if took := time.Since(start); took != time.Minute {
			t.Errorf("it ended after %v", took)
		}
		if err := <-cause; jsonrpc.CauseOf(err) != jsonrpc.CauseTokenExpired.String() {
			t.Errorf("cause %v", err)
		}
	})
}

// TestExpiredStreamIsNoGoodbye: a client whose stream ended with its token has not left.
func TestExpiredStreamIsNoGoodbye(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := newBubbleServer(t, func(h *HTTP) {
			h.Guard.Clients = people{"short": until(person("a"), time.Minute), "long": until(person("a"), time.Hour)}
		})
		c := ts.at("/mcp").as("short")
		c.initialize("2025-06-18")
		newEvents(t, c.get()).end()
		time.Sleep(20 * time.Minute)
		wantText(t, onlyMessage(t, c.as("long").post(fmt.Sprintf(call, 1))), `{"jsonrpc":"2.0","id":1,"result":{}}`)
		time.Sleep(20 * time.Minute)
		newEvents(t, c.as("long").get()).close()
		time.Sleep(6 * time.Minute) // this was one
		wantRefusal(t, c.as("long").post(fmt.Sprintf(call, 2)), 404, -32600)
	})
}

// TestExpiredListen: a subscription of the modern era ends with the token, a call does not.
func TestExpiredListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var conns <-chan jsonrpc.Conn
		ts := newBubbleServer(t, func(h *HTTP) {
			h.Guard.Clients = people{"a": until(person("a"), time.Minute)}
			conns = manualPrincipal(h)
		})
		c := ts.at("/mcp").as("a")
		listen := c.send(c.modern(`"l"`, "subscriptions/listen", `"notifications":{}`))
		conn := <-conns
		asked, _ := conn.Recv()
		called := c.send(c.modern("1", "tools/call", `"name":"x"`))
		m, _ := conn.Recv()
		answered := make(chan *jsonrpc.Message, 1)
		go func() { answered <- onlyMessage(t, <-called) }()
		start := time.Now()
		rest := newEvents(t, <-listen).rest()
		if took := time.Since(start); took != time.Minute || len(rest) == 0 {
			t.Fatalf("ended after %v with %v", took, rest)
		}
		wantText(t, rest[len(rest)-1].message(t), `{"jsonrpc":"2.0","id":"l","error":{"code":-32603,"message":"Connection closed: token expired",`+
			`"data":{"reason":"connection_closed","cause":"token expired","phase":"in_flight","retryable":false}}}`)
		wantCancel(t, conn, asked)
		time.Sleep(time.Minute)
		conn.Send(jsonrpc.NewResult(m.ID, []byte(`{}`)))
		wantText(t, <-answered, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
}

// TestNoTimers: identities that never expire need no timer.
func TestNoTimers(t *testing.T) {
	ctx, cancel := new(Guard).whileGood(t.Context(), person("a"))
	defer cancel()
	if ctx != t.Context() {
		t.Error("a ctx of its own")
	}
}

// TestExpiryAfterSuspend: a stream does not live on by the time for which the machine was suspended.
// Timers do not count that time, but the wall clock does, so that the expiry comes nearer.
func TestExpiryAfterSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		who := until(person("a"), time.Hour)
		g := &Guard{Clients: people{}}
		ctx, release := g.whileGood(t.Context(), who)
		defer release()
		time.Sleep(time.Minute)
		synctest.Wait()
		if ctx.Err() != nil {
			t.Fatalf("it has ended early: %v", context.Cause(ctx))
		}
		expire(who)
		time.Sleep(expiryLook)
		synctest.Wait()
		if why := context.Cause(ctx); why != errExpired {
			t.Errorf("it ends with %v", why)
		}
	})
}

// expire lets who expire now. No timer fires meanwhile, but the race detector does not see that, as
// the time of a bubble orders nothing for it.
//
//go:norace
func expire(who *identity.Identity) { who.Expires = time.Now() }
