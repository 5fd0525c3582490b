package frontend

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// resumes plays the servers of a session that has moved to r: it returns the session's Conn after its
// initialize was answered, and what was said again after it.
func (r *replica) resumes(t *testing.T, changes bool) (conn jsonrpc.Conn, params string) {
	t.Helper()
	conn = conntest.Await(t, "the session that has moved", r.conns)
	m := conntest.Recv(t, conn)
	if m.Method != "initialize" {
		t.Fatalf("it begins with %s", m.Append(nil))
	}
	result := string(initializeResult(m).Result)
	if changes {
		result = strings.Replace(result, `"tools":{}`, `"tools":{"listChanged":true},"prompts":{"listChanged":false}`, 1)
	}
	conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(result)))
	return conn, string(m.Params)
}

// leaves makes r drain and move its sessions, and waits until all have gone.
func (r *replica) leaves(t *testing.T) (moved int) {
	t.Helper()
	r.Drain()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return r.Move(ctx)()
}

// TestMoved: a session moves when its replica leaves, with all that its client has said, and is found
// wherever requests arrive, as long as the replica is there and when it is gone.
func TestMoved(t *testing.T) {
	f := newFleet(t, "a b c", nil, nil)
	a, b, c := f["a"], f["b"], f["c"]
	client, old := a.connectManual("2025-11-25")
	say := func(text string) {
		t.Helper()
		client.send(client.request("POST", text))
		if m := conntest.Recv(t, old); m.IsRequest() {
			old.Send(jsonrpc.NewResult(m.ID, json.RawMessage("{}")))
		}
	}
	wantStatus(t, client.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), 202)
	conntest.Recv(t, old)
	for i, said := range []string{
		`"logging/setLevel","params":{"level":"debug"}`, `"logging/setLevel","params":{"level":"error"}`,
		`"resources/subscribe","params":{"uri":"file:///a<b"}`, `"resources/subscribe","params":{"uri":"x:y"}`,
		`"resources/unsubscribe","params":{"uri":"x:y"}`, `"tools/call","params":{}`,
	} {
		say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%s}`, 10+i, said))
	}
	a.sees("c", Away) // so it must be b
	if n := a.leaves(t); n != 1 {
		t.Errorf("%d sessions were moved, want 1", n)
	}
	wantRecvEnds(t, old, errMoved)
	conntest.Eventually(t, "nothing is left", func() bool { open, sessions := a.connections(); return open+sessions == 0 })
	if open, sessions := b.connections(); open+sessions != 0 {
		t.Errorf("%d connections and %d sessions before the client comes", open, sessions)
	}

	call := client.through(c)
	first := call.send(call.request("POST", `{"jsonrpc":"2.0","id":10,"method":"tools/list"}`))
	conn, params := b.resumes(t, false)
	if want := strings.Replace(initializeParams, "%", "2025-11-25", 1); `"params":`+params != want {
		t.Errorf("initialize has %s, want %s", params, want)
	}
	wantText(t, conntest.Recv(t, conn), `{"jsonrpc":"2.0","method":"notifications/initialized","params":{}}`)
	var subscribe *jsonrpc.Message
	for _, want := range []string{`{"level":"error"}`, `{"uri":"file:///a<b"}`} {
		if m := conntest.Recv(t, conn); string(m.Params) != want {
			t.Errorf("%s, want %s", m.Append(nil), want)
		} else {
			subscribe = m
			conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage("{}")))
		}
	}
	if subscribe == nil {
		t.FailNow()
	}
	m := conntest.Recv(t, conn)
	wantText(t, m, `{"jsonrpc":"2.0","id":10,"method":"tools/list"}`)
	conn.Send(result(10))
	wantText(t, onlyMessage(t, conntest.Await(t, "response", first)), `{"jsonrpc":"2.0","id":10,"result":"done"}`)
	if n := conn.(*endedConn).Conn.(*httpSession).Asked(); n != 1<<32 {
		t.Errorf("questions begin after %d", n)
	}

	if got, want := b.Moves(), (Moves{Taken: 1, Resumed: 1}); got != want {
		t.Errorf("b counts %+v, want %+v", got, want)
	}
	a.sees("b", There)
	for _, r := range []*replica{b, c} {
		r.sees("a", Gone)
	}
	a.cut()
	stream := newEvents(t, client.through(c).get())
	stream.one()
	wantText(t, stream.one().message(t), `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a<b"}}`)
	hops := b.hops.Load()
	wantStatus(t, client.through(c).delete(), http.StatusNoContent)
	stream.end()
	wantRecvEnds(t, conn, errDeleted)
	if n := b.hops.Load() - hops; n != 1 {
		t.Errorf("b was asked %d times for a DELETE", n)
	}
	wantRefusal(t, client.through(c).post(ping), http.StatusNotFound, -32600)
	wantRefusal(t, client.through(b).post(ping), http.StatusNotFound, -32600)
	if got, want := c.Moves(), (Moves{Found: 1}); got != want {
		t.Errorf("c counts %+v, want %+v", got, want)
	}
}

// TestMovedEvents: what a client has not read moves along, and Last-Event-ID goes on. A question that it
// has not got does not, since nobody waits for its answer.
func TestMovedEvents(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	a, b := f["a"], f["b"]
	client, old := a.connectManual("2025-11-25")
	post := newEvents(t, client.post(fmt.Sprintf(call, 1)))
	conntest.Recv(t, old)
	last := post.one().LastEventID
	post.close()
	conntest.Eventually(t, "the drop is noticed", func() bool { return a.only().holds().open == 0 })
	old.Send(result(1))
	stream := newEvents(t, client.get())
	stream.one()
	old.Send(note("notifications/one"))
	one := stream.one().LastEventID
	stream.close()
	conntest.Eventually(t, "the drop is noticed", func() bool { return a.only().holds().open == 0 })
	old.Send(note("notifications/two"))
	old.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "elicitation/create", nil))
	old.Send(note("notifications/three"))
	old.Send(jsonrpc.NewNotification("notifications/large", json.RawMessage(`{"text":"`+strings.Repeat("x", maxRecorded/2)+`"}`)))
	a.leaves(t)
	b.sees("a", Gone)

	client = client.through(b)
	resumed := newEvents(t, client.get("Last-Event-ID", one))
	b.resumes(t, false)
	for _, want := range []string{"two", "three", "large"} {
		if m := resumed.one().message(t); !strings.HasPrefix(m.Method, "notifications/"+want) {
			t.Errorf("got %.99s, want %s", m.Append(nil), want)
		}
	}
	answer := newEvents(t, client.get("Last-Event-ID", last))
	wantText(t, answer.one().message(t), `{"jsonrpc":"2.0","id":1,"result":"done"}`)
	answer.end()
	b.HTTP.Close()
	resumed.end()
}

// TestMovedInUse: a session in use is served until it is not, and new calls with it. When time is up
// its calls fail, and it is moved.
func TestMovedInUse(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	a, b := f["a"], f["b"]
	client, old := a.connectManual("2025-11-25")
	stream := newEvents(t, client.get())
	stream.one()
	long := client.send(client.request("POST", fmt.Sprintf(call, 1)))
	conntest.Recv(t, old)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.Drain()
	wait := a.Move(ctx)
	next := client.send(client.request("POST", fmt.Sprintf(call, 2)))
	conntest.Recv(t, old)
	old.Send(result(2))
	wantText(t, onlyMessage(t, conntest.Await(t, "response", next)), `{"jsonrpc":"2.0","id":2,"result":"done"}`)
	ev := newEvents(t, conntest.Await(t, "the header", long))
	ev.one()
	cancel()
	wantText(t, ev.one().message(t), `{"jsonrpc":"2.0","id":1,"error":`+endingError+`}`)
	ev.end()
	stream.end()
	if n := wait(); n != 1 {
		t.Errorf("%d sessions were moved", n)
	}
	wantRecvEnds(t, old, errMoved)
	again := client.send(client.request("POST", fmt.Sprintf(call, 3)))
	conn, _ := b.resumes(t, false)
	conntest.Recv(t, conn)
	conn.Send(result(3))
	wantText(t, onlyMessage(t, conntest.Await(t, "response", again)), `{"jsonrpc":"2.0","id":3,"result":"done"}`)
}

// TestMovedBetweenCalls: sessions move between two calls of clients that make one right after the other.
func TestMovedBetweenCalls(t *testing.T) {
	f := newFleet(t, "a b", nil, nil)
	a, b := f["a"], f["b"]
	serve := func(conn jsonrpc.Conn) {
		for m, err := conn.Recv(); err == nil; m, err = conn.Recv() {
			if m.IsRequest() {
				time.Sleep(30 * time.Millisecond)
				conn.Send(jsonrpc.NewResult(m.ID, []byte(`"done"`)))
			}
		}
	}
	const clients, calls = 8, 10
	answers := make(chan string, clients*calls)
	begun, done := make(chan struct{}, clients*calls), make(chan struct{}, clients)
	for range clients {
		client, old := a.connectManual("2025-11-25")
		go serve(old)
		go func() {
			defer func() { done <- struct{}{} }()
			for i := range calls {
				resp, err := client.http.Do(client.request("POST", fmt.Sprintf(call, i+1)))
				if err != nil {
					answers <- err.Error()
					return
				}
				text, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				answers <- string(text)
				begun <- struct{}{}
			}
		}()
	}
	for range clients {
		<-begun
	}
	a.Drain()
	wait := a.Move(t.Context())
	for range clients {
		conn, _ := b.resumes(t, false)
		go serve(conn)
	}
	for range clients {
		conntest.Await(t, "the last call", done)
	}
	close(answers)
	for text := range answers {
		if !strings.Contains(text, `"result":"done"`) {
			t.Error(text)
		}
	}
	if n := wait(); n != clients {
		t.Errorf("%d sessions were moved", n)
	}
}

const endingError = `{"code":-32603,"message":"Connection closed: this replica is being stopped, and its sessions move to another one","data":{"reason":"connection_closed","cause":"host stopped","phase":"in_flight","retryable":false}}`

// TestMovedOn: a session that nobody has used yet moves on, and so does one that moved before.
func TestMovedOn(t *testing.T) {
	f := newFleet(t, "a b c", nil, nil)
	a, b, c := f["a"], f["b"], f["c"]
	used, old := a.connectManual("2025-06-18")
	unused, _ := a.connectManual("2025-06-18")
	a.sees("c", Away)
	a.leaves(t)
	wantRecvEnds(t, old, errMoved)
	first := used.send(used.request("POST", fmt.Sprintf(call, 1)))
	conn, _ := b.resumes(t, false)
	conntest.Recv(t, conn)
	conn.Send(result(1))
	conntest.Await(t, "response", first)
	b.sees("a", Gone)
	if n := b.leaves(t); n != 2 {
		t.Errorf("%d sessions were moved", n)
	}
	c.digest = "another"
	for _, client := range []*testClient{used, unused} {
		next := client.send(client.request("POST", fmt.Sprintf(call, 2))) // by a, b and c
		conn, _ := c.resumes(t, true)
		conntest.Recv(t, conn)
		conn.Send(result(2))
		wantText(t, onlyMessage(t, conntest.Await(t, "response", next)), `{"jsonrpc":"2.0","id":2,"result":"done"}`)
		if n := conn.(*endedConn).Conn.(*httpSession).Asked(); n != 2<<32 {
			t.Errorf("questions begin after %d", n)
		}
		c.sees("a", Gone)
		c.sees("b", Gone)
		stream := newEvents(t, client.through(c).get())
		wantText(t, stream.one().message(t), `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		stream.close()
	}
}

// TestNotMoved: sessions end if nobody takes them, and those of HTTP+SSE always; their clients begin
// anew.
func TestNotMoved(t *testing.T) {
	f := newFleet(t, "a b", nil, func(name string, h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if name == "b" && r.Method == http.MethodPost {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			h.ServeHTTP(w, r)
		})
	})
	a, b := f["a"], f["b"]
	client, old := a.connectManual("2025-06-18")
	a.Drain()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if n := a.Move(ctx)(); n != 0 {
		t.Errorf("%d sessions were moved", n)
	}
	wantRecvEnds(t, old, errStopped)
	wantRefusal(t, client.post(ping), http.StatusNotFound, -32600)
	b.sees("a", Gone)
	wantRefusal(t, client.through(b).post(ping), http.StatusNotFound, -32600)
}

// TestUpstreamOfOneReplica: a replica whose configuration has no upstream of that name yet passes requests on to
// the one that has the session, the suspended call or the task, and takes no session over.
func TestUpstreamOfOneReplica(t *testing.T) {
	f := newFleet(t, "a b", func(name string, h *HTTP) {
		h.Known = func(*identity.Identity, string) bool { return name == "a" }
		h.ServePrincipal = principal(echo)
	}, nil)
	client, conn := f["a"].connectManualAt("/mcp/files", "2025-11-25")
	through := client.through(f["b"])
	got := through.send(through.request("POST", ping))
	conn.Send(jsonrpc.NewResult(conntest.Recv(t, conn).ID, json.RawMessage(`{}`)))
	wantText(t, onlyMessage(t, conntest.Await(t, "response", got)), `{"jsonrpc":"2.0","id":1,"result":{}}`)
	modern := f["b"].at("/mcp/files")
	wantStatus(t, modern.do(modern.modern("1", "tasks/get", `"taskId":"mcp-proxy:a.0.mac:t1"`)), 200)
	before := f["a"].hops.Load()
	wantStatus(t, modern.do(modern.modern("1", "tasks/get", `"taskId":"t1"`)), 404)
	wantStatus(t, modern.post(ping), 404)
	if n := f["a"].hops.Load(); n != before || n != 2 {
		t.Errorf("%d requests were passed on, %d before", n, before)
	}
	f["a"].Drain()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if n := f["a"].Move(ctx)(); n != 0 {
		t.Errorf("%d sessions were moved", n)
	}
	wantRecvEnds(t, conn, errStopped)
}

// TestMovedToAnother: a session is its principal's, and a server that now speaks another version ends it.
func TestMovedToAnother(t *testing.T) {
	all := people{}
	for _, name := range []string{"ann", "bob"} {
		all[name] = &identity.Identity{Principal: identity.Principal{Kind: identity.Token, Name: name}}
	}
	f := newFleet(t, "a b", func(_ string, h *HTTP) { h.Guard.Clients = all }, nil)
	a, b := f["a"], f["b"]
	client := a.at("/mcp")
	client.version = "2025-06-18"
	as := func(name, text string) <-chan *http.Response {
		return client.send(client.request("POST", text, "Authorization", "Bearer "+name))
	}
	begin := as("ann", strings.Replace(initializeText, "%", "2025-06-18", 1))
	conn := conntest.Await(t, "session", a.conns)
	m := conntest.Recv(t, conn)
	conn.Send(initializeResult(m))
	client.session = conntest.Await(t, "response", begin).Header.Get("Mcp-Session-Id")
	a.leaves(t)
	b.sees("a", Gone)
	client = client.through(b)
	wantRefusal(t, conntest.Await(t, "response", as("bob", ping)), http.StatusNotFound, -32600)
	next := as("ann", ping)
	conn = conntest.Await(t, "session", b.conns)
	m = conntest.Recv(t, conn)
	m.Params = json.RawMessage(`{"protocolVersion":"2025-11-25"}`)
	conn.Send(initializeResult(m))
	wantRefusal(t, conntest.Await(t, "response", next), http.StatusNotFound, -32600)
	wantRecvEnds(t, conn, errNotStarted)
}
