package frontend

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// TestKeyTakenAway: a session ends at its own replica, too, when the key is gone that signed its id.
func TestKeyTakenAway(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	c, _ := f["a"].connectManual("2025-11-25")
	for _, r := range f {
		r.mu.Lock()
		r.place["a"] = Nowhere
		r.mu.Unlock()
	}
	for _, at := range []string{"a", "b"} {
		wantStatus(t, c.through(f[at]).post(fmt.Sprintf(call, 1)), 404)
	}
}

// TestPassedOn: a session that begins at one replica works at each other, in both directions.
func TestPassedOn(t *testing.T) {
	for _, names := range []string{"a b", "b a"} {
		f := newFleet(t, "a b c", nil, nil)
		at, to, _ := strings.Cut(names, " ")
		owner, other := f[at], f[to]
		c, conn := owner.connectManual("2025-11-25")
		if !strings.HasPrefix(c.session, at+".") {
			t.Errorf("session %q, want an id of NewID", c.session)
		}
		c = c.through(other)

		plain := c.send(c.request("POST", fmt.Sprintf(call, 1)))
		conntest.Recv(t, conn)
		conn.Send(result(1))
		wantText(t, onlyMessage(t, conntest.Await(t, "response", plain)), `{"jsonrpc":"2.0","id":1,"result":"done"}`)

		post := newEvents(t, c.post(fmt.Sprintf(call, 2))) // header and priming come at once
		conntest.Recv(t, conn)
		post.one()
		for range 2 {
			conn.Send(related(note("notifications/progress"), 2))
			wantText(t, post.one().message(t), `{"jsonrpc":"2.0","method":"notifications/progress"}`)
		}
		conn.Send(related(jsonrpc.NewRequest(jsonrpc.IntID(7), "elicitation/create", nil), 2))
		if q := post.one().message(t); q.Method != "elicitation/create" {
			t.Errorf("got %s, want the question", q.Append(nil))
		}
		wantStatus(t, c.post(`{"jsonrpc":"2.0","id":7,"result":{"answer":true}}`), 202)
		wantText(t, conntest.Recv(t, conn), `{"jsonrpc":"2.0","id":7,"result":{"answer":true}}`)
		conn.Send(result(2))
		wantText(t, post.one().message(t), `{"jsonrpc":"2.0","id":2,"result":"done"}`)
		post.end()

		stream := newEvents(t, c.get())
		stream.one()
		conn.Send(note("notifications/hello"))
		wantText(t, stream.one().message(t), `{"jsonrpc":"2.0","method":"notifications/hello"}`)

		cancelled := newEvents(t, c.post(fmt.Sprintf(call, 3)))
		conntest.Recv(t, conn)
		wantStatus(t, c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`), 202)
		cancelled.one()
		wantError(t, cancelled.one().message(t), 3, cancelledError)
		if m := conntest.Recv(t, conn); m.Method != "notifications/cancelled" {
			t.Errorf("received %s", m.Append(nil))
		}

		wantStatus(t, c.delete(), http.StatusNoContent)
		stream.end()
		wantRecvEnds(t, conn, errDeleted)
		wantRefusal(t, c.post(ping), http.StatusNotFound, -32600)
		if n := owner.hops.Load(); n != 8 {
			t.Errorf("%d requests were passed on, want 8", n)
		}
		if n := other.hops.Load() + f["c"].hops.Load(); n != 0 {
			t.Errorf("%d requests were passed on to others", n)
		}
		if open, sessions := other.connections(); open+sessions != 0 {
			t.Errorf("%d connections and %d sessions where requests arrived, want none", open, sessions)
		}
	}
}

// TestPassedOnUnchanged: the owner gets path, query, headers and body as they were sent.
func TestPassedOnUnchanged(t *testing.T) {
	got := make(chan *http.Request, 1)
	serve := func(string, http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if want := " [" + ping + " ]"; string(body) != want {
				t.Errorf("body %q, want %q", body, want)
			}
			got <- r
			w.WriteHeader(http.StatusAccepted)
		})
	}
	f := newFleet(t, "a b", func(_ string, h *HTTP) { h.Guard.AllowedHosts = []string{"mcp.example"} }, serve)
	c := f["b"].at("/mcp/files?x=%41;y&z")
	c.session = "a.0.mac"
	headers := []string{
		"Host", "mcp.example:99", "Origin", "http://localhost:5", "Authorization", "Bearer x", "Last-Event-ID", "1-2",
		"Mcp-Param-City", "Wien", "Traceparent", "00-1-2-01", "Tracestate", "a=b", "X-Forwarded-For", "192.0.2.1",
		"X-Forwarded-Proto", "https", "Forwarded", "for=192.0.2.1", "Idempotency-Key", "7", "Content-Type", "application/json; x=y",
		"Mcp-Session-Id", "a.0.mac", "MCP-Protocol-Version", "2025-03-26", "User-Agent", "u",
	}
	req := c.request("POST", " ["+ping+" ]", append(headers, "Expect", "100-continue", "Connection", "Upgrade", "Upgrade", "\xff")...)
	wantStatus(t, c.do(req), 202)
	r := conntest.Await(t, "request", got)
	if r.URL.String() != "/mcp/files?x=%41;y&z" || r.Host != "mcp.example:99" {
		t.Errorf("got %s of %s", r.URL, r.Host)
	}
	for i := 2; i < len(headers); i += 2 {
		if v := r.Header.Values(headers[i]); len(v) != 1 || v[0] != headers[i+1] {
			t.Errorf("%s: %q, want %q", headers[i], v, headers[i+1])
		}
	}
	for _, name := range []string{"Expect", "Upgrade", "Connection"} {
		if v := r.Header.Values(name); v != nil {
			t.Errorf("%s: %q, want none", name, v)
		}
	}
}

// TestPassedOnDrop: a client that drops its connection ends the passed request at the owner, which
// keeps the events. The client resumes the stream by any replica.
func TestPassedOnDrop(t *testing.T) {
	f := newFleet(t, "a b c", nil, nil)
	owner := f["a"]
	c, conn := owner.connectManual("2025-11-25")
	ev := newEvents(t, c.through(f["b"]).post(fmt.Sprintf(call, 1)))
	conntest.Recv(t, conn)
	ev.one()
	conn.Send(related(note("notifications/progress"), 1))
	last := ev.one().LastEventID
	ev.close()
	conntest.Eventually(t, "the owner notices the drop", func() bool { return owner.only().holds().open == 0 })
	conn.Send(result(1))
	resumed := newEvents(t, c.through(f["c"]).get("Last-Event-ID", last))
	wantText(t, resumed.one().message(t), `{"jsonrpc":"2.0","id":1,"result":"done"}`)
	resumed.end()
}

// TestPassedOnSSE: a message of HTTP+SSE reaches its session through another replica.
func TestPassedOnSSE(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	stream := newEvents(t, f["a"].at("/sse").get())
	endpoint := stream.one().Data
	conn := conntest.Await(t, "session", f["a"].conns)
	if !strings.HasPrefix(endpoint, "message?sessionId=a.") {
		t.Fatalf("endpoint %q", endpoint)
	}
	wantStatus(t, f["b"].at("/"+endpoint).post(ping), 202)
	wantText(t, conntest.Recv(t, conn), ping)
	conn.Send(result(1))
	wantText(t, stream.one().message(t), `{"jsonrpc":"2.0","id":1,"result":"done"}`)
	f["a"].cut()
	resp := f["b"].at("/" + endpoint).post(ping) // nothing may answer it besides the stream
	wantRefusal(t, resp, http.StatusServiceUnavailable, -32603)
}

// TestPlaces: a request for a session that is away is refused for now, and one for a session that is
// nowhere as if there were no replicas. Nothing is sent.
func TestPlaces(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	c, conn := f["a"].connectManual("2025-11-25")
	legacy := f["b"].at("/message?sessionId=a.0.mac")
	c = c.through(f["b"])
	for at, status := range map[Where]int{Away: 503, Nowhere: 404, Here: 404} {
		f["b"].sees("a", at)
		code := map[int]int{503: -32603, 404: -32600}[status]
		for _, resp := range []*http.Response{c.post(ping), c.get(), c.delete(), legacy.post(ping), c.post(`{"jsonrpc":"2.0","id":7,"result":{}}`)} {
			wantRefusal(t, resp, status, code)
			if retry := resp.Header.Get("Retry-After"); (retry != "") != (status == 503) {
				t.Errorf("%d: Retry-After %q", status, retry)
			}
		}
	}
	if n := f["a"].hops.Load(); n != 0 {
		t.Errorf("%d requests were passed on", n)
	}
	conn.Close()
}

// TestOneHop: a request that was passed on is not passed on again, whatever its receiver thinks of
// the owner.
func TestOneHop(t *testing.T) {
	f := newFleet(t, "a b c", nil, nil)
	f["b"].fleet = fleet{"a": f["c"], "b": f["b"]} // b takes c for the owner, and c takes a for it
	c, conn := f["a"].connectManual("2025-11-25")
	c = c.through(f["b"])
	for _, resp := range []*http.Response{c.post(ping), c.get(), c.delete()} {
		wantRefusal(t, resp, http.StatusNotFound, -32600)
	}
	if a, c := f["a"].hops.Load(), f["c"].hops.Load(); a != 0 || c != 3 {
		t.Errorf("%d requests at a, %d at c, want 0 and 3", a, c)
	}
	conn.Close()
}

// TestWrongTokenIsNotPassedOn: the first replica authenticates, and the owner does it anew.
func TestWrongTokenIsNotPassedOn(t *testing.T) {
	tokens := map[string]people{}
	f := newFleet(t, "a b", func(name string, h *HTTP) {
		tokens[name] = people{"good": person("alice"), "other": person("bob"), name: person("alice")}
		h.Guard.Clients, h.Guard.AllowedOrigins = tokens[name], []string{"https://app.example"}
		h.Serve = untilDone(echo)
	}, nil)
	c := f["a"].at("/mcp").as("good")
	c.initialize("2025-11-25")
	c = c.through(f["b"])
	wantRefusal(t, c.as("wrong").post(ping), 401, -32600)
	if n := f["a"].hops.Load(); n != 0 {
		t.Errorf("%d requests with a wrong token were passed on", n)
	}
	wantRefusal(t, c.as("other").post(ping), 404, -32600)
	resp := c.as("b").post(ping, "Origin", "https://app.example") // only b knows this token
	wantRefusal(t, resp, 401, -32600)
	wantCORS(t, resp)
	if challenge := resp.Header.Values("WWW-Authenticate"); len(challenge) != 1 {
		t.Errorf("challenges %q, want that of the owner", challenge)
	}
	resp = c.as("good").post(ping, "Origin", "https://app.example")
	wantText(t, onlyMessage(t, resp), `{"jsonrpc":"2.0","id":1,"result":{}}`)
	wantCORS(t, resp)
	f["a"].cut()
	resp = c.as("good").post(ping, "Origin", "https://app.example")
	wantRefusal(t, resp, http.StatusServiceUnavailable, -32603)
	wantCORS(t, resp)
}

func wantCORS(t *testing.T, resp *http.Response) {
	t.Helper()
	for name, want := range map[string]string{
		"Access-Control-Allow-Origin": "https://app.example", "Access-Control-Expose-Headers": corsExposed, "Vary": "Origin",
	} {
		if v := resp.Header.Values(name); len(v) != 1 || v[0] != want {
			t.Errorf("%s: %q, want %q once", name, v, want)
		}
	}
}

// byConnection identifies clients by their connection: by a test's certificate, else not at all.
type byConnection struct {
	noIdentifier
	seen chan *http.Request
}

func (byConnection) Asks() bool { return true }

func (b byConnection) Identify(r *http.Request) (*identity.Identity, *identity.Refusal) {
	b.seen <- r
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, &identity.Refusal{Status: 403, Text: "no certificate"}
	}
	return &identity.Identity{Principal: identity.Principal{Kind: identity.Certificate, Issuer: "Staff", Name: "älice\x7f"}, Expires: expires}, nil
}

var expires = time.Date(2099, 1, 2, 3, 4, 5, 6, time.UTC)

// TestConnectionProofs: the principal of a certificate, its expiry and the address of the client
// travel with a passed request. A client that sends the header itself gains nothing.
func TestConnectionProofs(t *testing.T) {
	seen := make(chan *http.Request, 16)
	at := make(chan *http.Request, 16)
	var froms []*identity.Identity
	f := newFleet(t, "a b", func(_ string, h *HTTP) {
		h.Guard.Clients = byConnection{seen: seen}
		h.Guard.AllowedHosts = []string{"mcp.example"}
		h.Known = func(who *identity.Identity, _ string) bool {
			froms = append(froms, who)
			return true
		}
	}, func(_ string, h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Host != "mcp.example" { // b trusts this name, and a does not
				t.Errorf("Host %q", r.Host)
			}
			at <- r
			h.ServeHTTP(w, r)
		})
	})
	f["a"].Guard.AllowedHosts = nil
	forged := `{"v":1,"remote":"192.0.2.9:1","client":{"kind":"certificate","issuer":"Staff","name":"mallory"}}`
	request := func(certificate bool) *http.Request {
		r, _ := http.NewRequestWithContext(t.Context(), "DELETE", "/mcp/files", nil)
		r.Header = http.Header{"Mcp-Session-Id": {"a.0.mac"}, headerReplica: {forged}}
		r.Host, r.RemoteAddr = "mcp.example", "203.0.113.5:77"
		if certificate {
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
		}
		return r
	}
	w := httptest.NewRecorder()
	f["b"].ServeHTTP(w, request(false))
	if w.Code != 403 || f["a"].hops.Load() != 0 || len(froms) != 0 {
		t.Fatalf("a forged header: %d, %d hops, %v", w.Code, f["a"].hops.Load(), froms)
	}
	<-seen
	w = httptest.NewRecorder()
	f["b"].ServeHTTP(w, request(true))
	if w.Code != 404 || f["a"].hops.Load() != 1 {
		t.Errorf("%d %s, %d hops", w.Code, w.Body, f["a"].hops.Load())
	}
	if r := <-seen; r.Header[headerReplica] != nil || r.RemoteAddr != "203.0.113.5:77" {
		t.Errorf("b identified %v from %s", r.Header, r.RemoteAddr)
	}
	if len(seen) != 0 {
		t.Error("the owner looked for a certificate of the other replica")
	}
	if len(froms) != 2 || froms[0].Principal != froms[1].Principal || !froms[1].Expires.Equal(expires) || len(froms[1].Scopes) != 0 {
		t.Errorf("principals %v", froms)
	}
	r, o := readOrigin(httptest.NewRecorder(), <-at)
	if r.RemoteAddr != "203.0.113.5:77" || r.TLS == nil || r.Header[headerReplica] != nil || o.client().Principal != froms[0].Principal {
		t.Errorf("the owner got %+v from %s", o, r.RemoteAddr)
	}
}

// withdrawable are people whose proofs end with a ctx.
type withdrawable struct {
	people
	good context.Context
}

func (w withdrawable) Good(*identity.Identity) context.Context { return w.good }

// TestConnectionProofIsNotEnough: where another proof is needed meanwhile, it does not help that another replica still
// lets the client in by its connection.
func TestConnectionProofIsNotEnough(t *testing.T) {
	good, withdraw := context.WithCancel(t.Context())
	defer withdraw()
	f := newFleet(t, "a b", func(name string, h *HTTP) {
		h.Guard.Clients = byConnection{seen: make(chan *http.Request, 16)}
		if name == "a" {
			h.Guard.Clients = withdrawable{people{}, good}
		}
	}, nil)
	through := func() int {
		r, _ := http.NewRequestWithContext(t.Context(), "DELETE", "/mcp", nil)
		r.Header.Set(headerSession, "a.0.mac")
		r.Host, r.TLS = "localhost", &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
		w := httptest.NewRecorder()
		f["b"].ServeHTTP(w, r)
		return w.Code
	}
	if code := through(); code != 404 {
		t.Errorf("%d, want the owner to look for the session", code)
	}
	withdraw()
	if code := through(); code != 401 {
		t.Errorf("%d, want the owner to ask for a token", code)
	}
}

// bubbleFleet returns the replicas a and b for a bubble of synctest, where b reaches a. serve serves what b passes on to h,
// which is a, until over is called.
func bubbleFleet() (f fleet, serve func(h *HTTP) (over func())) {
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	via := &http.Transport{DialContext: l.dial}
	f = fleet{"a": {name: "a", via: via}, "b": {name: "b"}}
	for _, r := range f {
		r.fleet = f
	}
	return f, func(h *HTTP) func() {
		server := &http.Server{Handler: h, ConnContext: func(ctx context.Context, _ net.Conn) context.Context { return FromReplica(ctx) }}
		go server.Serve(l)
		return func() {
			h.Close()
			server.Close()
			via.CloseIdleConnections()
		}
	}
}

// TestWithdrawnWherePassedOn: a stream ends when the replica that passes it on no longer accepts the client, although its
// owner does. A call may finish.
func TestWithdrawnWherePassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, serve := bubbleFleet()
		good, withdraw := context.WithCancel(t.Context())
		defer withdraw()
		all := people{"t": person("alice")}
		var conns, modern <-chan jsonrpc.Conn
		a := newHTTP(t, func(h *HTTP) {
			h.Guard.Clients, h.Replicas = all, f["a"]
			conns, modern = manual(h), manualPrincipal(h)
		})
		a.url, a.client = "http://localhost", &http.Client{Transport: f["a"].via}
		defer serve(a.HTTP)()
		b := newBubbleServer(t, func(h *HTTP) { h.Guard.Clients, h.Replicas = withdrawable{all, good}, f["b"] })
		go func() {
			conn := <-conns
			m, _ := conn.Recv()
			conn.Send(initializeResult(m))
			conn.Recv()
			time.Sleep(10 * time.Minute)
			conn.Send(result(1))
			conn.Close()
		}()
		c := a.at("/mcp").as("t")
		c.initialize("2025-06-18")
		c.url, c.http = b.url+"/mcp", b.at("/mcp").as("t").http

		get := newEvents(t, c.get())
		called := c.send(c.request("POST", fmt.Sprintf(call, 1)))
		listening := c.send(c.modern(`"l"`, "subscriptions/listen", `"notifications":{"taskIds":["mcp-proxy:a.0.mac:t"]}`))
		listen := <-modern
		asked, _ := listen.Recv()
		withdraw()
		start := time.Now()
		get.end()
		if took := time.Since(start); took != ownerLook {
			t.Fatalf("the stream ended after %v", took)
		}
		wantText(t, onlyMessage(t, <-listening), `{"jsonrpc":"2.0","id":"l","error":{"code":-32603,"message":"Connection closed: token withdrawn",`+
			`"data":{"reason":"connection_closed","cause":"token withdrawn","phase":"in_flight","retryable":false}}}`)
		wantCancel(t, listen, asked)
		wantText(t, onlyMessage(t, <-called), `{"jsonrpc":"2.0","id":1,"result":"done"}`)
	})
}

// TestOrigins: the header of another version is read, an unusable one refused.
func TestOrigins(t *testing.T) {
	for text, ok := range map[string]bool{
		`{"v":1,"remote":"x"}`: true, `{"v":2,"remote":"x","more":{"a":[1]},"client":{"kind":"k","name":"n","z":1}}`: true,
		`{}`: false, `{"v":0}`: false, `x`: false, ``: false, `{"v":1,"remote":7}`: false,
	} {
		r, _ := http.NewRequestWithContext(FromReplica(context.Background()), "GET", "/mcp", nil)
		r.Header.Set(headerReplica, text)
		w := httptest.NewRecorder()
		got, o := readOrigin(w, r)
		if (got != nil) != ok || (o != nil) != ok || (w.Code == 400) == ok {
			t.Errorf("%s: %v, %d", text, o, w.Code)
		}
	}
	who := &identity.Identity{Principal: identity.Principal{Kind: identity.User, Name: "ann"}}
	r, _ := http.NewRequestWithContext(context.Background(), "GET", "/mcp", nil)
	if got, want := originOf(r, who, 1), `{"v":1,"remote":"","client":{"kind":"user","name":"ann"},"hops":1}`; got != want || !json.Valid([]byte(got)) {
		t.Errorf("%s, want %s", got, want)
	}
	who.Kind = identity.Token
	if got, want := originOf(r, who, 2), `{"v":1,"remote":"","hops":2}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestPassedOnIdle: streams through another replica last as others do, however long they are idle,
// also over HTTP/2, where each write has a deadline of its own.
func TestPassedOnIdle(t *testing.T) {
	cert := certificate()
	synctest.Test(t, func(t *testing.T) {
		f, serve := bubbleFleet()
		var conns <-chan jsonrpc.Conn
		a := newHTTP(t, func(h *HTTP) { conns, h.Replicas = manual(h), f["a"] })
		defer serve(a.HTTP)()
		b := newHTTP2Server(t, cert, func(h *HTTP) { h.Replicas = f["b"] })
		b.Drain() // so that even initialize is passed on
		f["b"].ready = "a"
		go func() {
			conn := <-conns
			m, _ := conn.Recv()
			conn.Send(initializeResult(m))
			conn.Recv()
			time.Sleep(10 * time.Minute)
			conn.Send(note("notifications/late"))
			conn.Send(result(1))
		}()
		c := b.at("/mcp")
		c.initialize("2025-06-18")
		get := newEvents(t, c.get())
		wantText(t, onlyMessage(t, c.post(fmt.Sprintf(call, 1))), `{"jsonrpc":"2.0","id":1,"result":"done"}`)
		wantText(t, get.one().message(t), `{"jsonrpc":"2.0","method":"notifications/late"}`)
		get.close()
	})
}

// TestShortID: the log tells sessions of one replica apart.
func TestShortID(t *testing.T) {
	for id, want := range map[string]string{"a1b2c3d4e5.ABCDEFGHIJ.0123": "ABCDEFGH", "ABCDEFGHIJ": "ABCDEFGH", "x.y": "y", "": ""} {
		if got := shortID(id); got != want {
			t.Errorf("%q: %q, want %q", id, got, want)
		}
	}
}
