package frontend

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// keepEach lets all replicas keep records for each other, until the test ends.
func (f fleet) keepEach(t *testing.T) {
	t.Helper()
	for _, r := range f {
		r.HTTP.init()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.Keep(ctx)
		}()
		t.Cleanup(func() {
			cancel()
			<-done
		})
	}
}

// keeping waits until a replica keeps the record of a session in which initialized was said, and returns it.
func (f fleet) keeping(t *testing.T, id, after string, not ...*replica) (keeper *replica) {
	t.Helper()
	conntest.Eventually(t, "the record is kept", func() bool {
		for _, r := range f {
			r.HTTP.open.directory.kept.mu.Lock()
			k := r.HTTP.open.directory.kept.byID[id]
			has := k != nil && strings.Contains(string(k.text), after)
			r.HTTP.open.directory.kept.mu.Unlock()
			if has && !slices.Contains(not, r) {
				keeper = r
			}
		}
		return keeper != nil
	})
	return keeper
}

// dies makes the others declare r dead, and ends their connections to it.
func (r *replica) dies() {
	for _, other := range r.fleet {
		if other != r {
			other.sees(r.name, Gone)
		}
	}
	r.cut()
}

// kept begins a session at a of three replicas, and returns which of the others keeps it.
func kept(t *testing.T) (f fleet, client *testClient, old jsonrpc.Conn, keeper, other *replica) {
	t.Helper()
	f = newFleet(t, "a b c", nil, nil)
	client, old = f["a"].connectManual("2025-11-25")
	wantStatus(t, client.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), 202)
	conntest.Recv(t, old)
	f.keepEach(t)
	keeper = f.keeping(t, client.session, "initialized")
	other = f["b"]
	if keeper == other {
		other = f["c"]
	}
	return f, client, old, keeper, other
}

// calls makes a call through a replica, which the servers of conn answer.
func (c *testClient) calls(t *testing.T, id int, conn func() jsonrpc.Conn) {
	t.Helper()
	resp := c.send(c.request("POST", fmt.Sprintf(call, id)))
	to := conn()
	for m := conntest.Recv(t, to); ; m = conntest.Recv(t, to) {
		if m.Method == "tools/call" {
			break
		}
		if m.IsRequest() {
			to.Send(jsonrpc.NewResult(m.ID, json.RawMessage("{}")))
		}
	}
	to.Send(result(int64(id)))
	wantText(t, onlyMessage(t, conntest.Await(t, "response", resp)), fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":"done"}`, id))
}

// TestAdopted: when a replica dies, another one continues its sessions with what their clients have said.
func TestAdopted(t *testing.T) {
	f, client, old, keeper, other := kept(t)
	a := f["a"]
	for i, said := range []string{`"logging/setLevel","params":{"level":"error"}`, `"resources/subscribe","params":{"uri":"file:///a<b"}`} {
		resp := client.send(client.request("POST", fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%s}`, 10+i, said)))
		old.Send(jsonrpc.NewResult(conntest.Recv(t, old).ID, json.RawMessage("{}")))
		wantStatus(t, conntest.Await(t, "response", resp), 200)
	}
	if f.keeping(t, client.session, "a<b") != keeper {
		t.Error("another replica keeps it")
	}
	stream := newEvents(t, client.get())
	last := stream.one().LastEventID
	a.dies()
	var conn jsonrpc.Conn
	client.through(other).calls(t, 20, func() jsonrpc.Conn { conn, _ = keeper.resumes(t, false); return conn })
	if n := conn.(*endedConn).Conn.(*httpSession).Asked(); n != 1<<32 {
		t.Errorf("questions begin after %d", n)
	}
	again := newEvents(t, client.through(other).get("Last-Event-ID", last))
	wantText(t, again.one().message(t), `{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"file:///a<b"}}`)
	again.close()
	wantRefusal(t, client.through(other).post(`{"jsonrpc":"2.0","id":1,"result":{}}`), http.StatusNotFound, -32600)
	wantStatus(t, client.through(other).post(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, 1<<32+1)), http.StatusAccepted)
	if m := conntest.Recv(t, conn); !m.IsResponse() || m.ID.String() != "4294967297" {
		t.Errorf("%s, want the second answer", m.Append(nil))
	}
	client.through(keeper).calls(t, 21, func() jsonrpc.Conn { return conn })
	conntest.Eventually(t, "it is reported", func() bool {
		keeper.mu.Lock()
		defer keeper.mu.Unlock()
		return slices.Contains(keeper.became, "adopted a 1")
	})
	if got, want := keeper.Moves(), (Moves{Adopted: 1, Resumed: 1}); got != want {
		t.Errorf("the keeper counts %+v, want %+v", got, want)
	}
	if f.keeping(t, client.session, `"moves":1`, a) != other {
		t.Error("the adopted session is kept by the wrong one")
	}
	keeper.dies()
	client.through(other).calls(t, 22, func() jsonrpc.Conn { conn, _ = other.resumes(t, false); return conn })
	if n := conn.(*endedConn).Conn.(*httpSession).Asked(); n != 2<<32 {
		t.Errorf("questions begin after %d", n)
	}
}

// TestNotAdopted: nobody continues a session whose replica may live, or whose newest record may be elsewhere.
func TestNotAdopted(t *testing.T) {
	f, client, _, keeper, other := kept(t)
	a := f["a"]
	other.sees("a", Gone)
	keeper.sees("a", Away)
	a.cut()
	wantRefusal(t, client.through(other).post(ping), http.StatusServiceUnavailable, -32603)
	wantRefusal(t, client.through(keeper).post(ping), http.StatusServiceUnavailable, -32603)
	keeper.sees("a", Gone)
	keeper.sees(other.name, Away)
	wantRefusal(t, client.through(keeper).post(ping), http.StatusServiceUnavailable, -32603)
	keeper.sees(other.name, There)
	client.through(keeper).calls(t, 20, func() jsonrpc.Conn { conn, _ := keeper.resumes(t, false); return conn })
}

// TestNewestAdopted: of two replicas that keep a record, the one with the newer continues the session, wherever
// requests arrive.
func TestNewestAdopted(t *testing.T) {
	f, client, old, keeper, other := kept(t)
	a := f["a"]
	a.sees(keeper.name, Away) // so the other one keeps it
	if f.keeping(t, client.session, "initialized", keeper) != other {
		t.Fatal("nobody else keeps it")
	}
	resp := client.send(client.request("POST", `{"jsonrpc":"2.0","id":10,"method":"logging/setLevel","params":{"level":"error"}}`))
	old.Send(jsonrpc.NewResult(conntest.Recv(t, old).ID, json.RawMessage("{}")))
	wantStatus(t, conntest.Await(t, "response", resp), 200)
	f.keeping(t, client.session, "error")
	a.dies()
	client.through(keeper).calls(t, 20, func() jsonrpc.Conn { conn, _ := other.resumes(t, false); return conn })
	client.through(other).calls(t, 21, func() jsonrpc.Conn {
		s := other.only()
		return &endedConn{Conn: s}
	})
}

// TestForgotten: what has ended is not kept.
func TestForgotten(t *testing.T) {
	f, client, _, keeper, other := kept(t)
	wantStatus(t, client.delete(), http.StatusNoContent)
	conntest.Eventually(t, "it is forgotten", func() bool { return keeper.HTTP.open.directory.kept.of(client.session) == nil })
	f["a"].dies()
	wantRefusal(t, client.through(other).post(ping), http.StatusNotFound, -32600)
	wantRefusal(t, client.through(keeper).post(ping), http.StatusNotFound, -32600)
}

// TestKeptOfStopped: what ends because its replica stops without any time is kept, and another replica continues it.
func TestKeptOfStopped(t *testing.T) {
	f, client, _, keeper, other := kept(t)
	a := f["a"]
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n := a.Move(ctx)(); n != 0 {
		t.Errorf("%d sessions were moved", n)
	}
	a.HTTP.open.directory.mu.Lock()
	s := a.HTTP.open.directory.byID[client.session]
	a.HTTP.open.directory.mu.Unlock()
	if !s.Moves() {
		t.Error("the session drains, and whoever keeps it forgets it")
	}
	s.end(errStopped, true)
	a.HTTP.open.directory.changes.note(client.session) // as by a request just before
	next, conn := a.connectManual("2025-11-25")
	wantStatus(t, next.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), 202)
	conntest.Recv(t, conn)
	f.keeping(t, next.session, "initialized") // so the note was seen
	a.dies()
	client.through(other).calls(t, 2, func() jsonrpc.Conn { conn, _ := keeper.resumes(t, false); return conn })
}

// TestKeptElsewhere: when a replica leaves or comes, others keep what it has kept.
func TestKeptElsewhere(t *testing.T) {
	f, client, _, keeper, other := kept(t)
	keeper.Drain()
	for _, r := range []*replica{f["a"], other} {
		r.mu.Lock()
		r.ready = other.name
		r.mu.Unlock()
	}
	if f.keeping(t, client.session, "initialized", keeper) != other {
		t.Error("the wrong one keeps it")
	}
	conntest.Eventually(t, "it is forgotten", func() bool { return keeper.HTTP.open.directory.kept.of(client.session) == nil })
}

// TestStoodStill: a replica that stood still finds out which of its sessions others have continued before it
// serves one.
func TestStoodStill(t *testing.T) {
	f, client, old, keeper, other := kept(t)
	a := f["a"]
	open := client.send(client.request("POST", fmt.Sprintf(call, 5)))
	conntest.Recv(t, old)
	stream := newEvents(t, conntest.Await(t, "the open call", open))
	for _, r := range f {
		if r != a {
			r.sees("a", Gone)
		}
	}
	var conn jsonrpc.Conn
	client.through(other).calls(t, 20, func() jsonrpc.Conn { conn, _ = keeper.resumes(t, false); return conn })
	for _, r := range f {
		if r != a {
			r.sees("a", There)
		}
	}
	p := &a.HTTP.open.keeper.pulse
	p.mu.Lock()
	p.last.Store(time.Now().Add(-time.Minute).UnixNano())
	p.mu.Unlock()
	client.calls(t, 21, func() jsonrpc.Conn { return conn })
	wantRecvEnds(t, old, errMoved)
	ev := stream.one()
	if len(ev.Data) == 0 {
		ev = stream.one()
	}
	wantText(t, ev.message(t), `{"jsonrpc":"2.0","id":5,"error":`+closedInFlight+`}`)
	stream.end()
	if got := a.Moves().Yielded; got != 1 {
		t.Errorf("%d sessions were yielded", got)
	}
}

// TestInDoubt: as long as a replica that stood still does not know which of its sessions are its own, it serves
// none.
func TestInDoubt(t *testing.T) {
	f, client, old, _, _ := kept(t)
	a := f["a"]
	a.sees("b", Away)
	p := &a.HTTP.open.keeper.pulse
	p.mu.Lock()
	p.last.Store(time.Now().Add(-time.Minute).UnixNano())
	p.mu.Unlock()
	wantRefusal(t, client.post(ping), http.StatusServiceUnavailable, -32603)
	a.sees("b", Gone)
	client.calls(t, 21, func() jsonrpc.Conn { return old })
}

// TestSplit: while the network is split both sides continue a session. When it heals, the copy that has moved
// less ends.
func TestSplit(t *testing.T) {
	f, client, old, keeper, _ := kept(t)
	a := f["a"]
	for _, r := range f {
		if r != a {
			r.sees("a", Gone)
			a.sees(r.name, Gone)
		}
	}
	var conn jsonrpc.Conn
	client.through(keeper).calls(t, 20, func() jsonrpc.Conn { conn, _ = keeper.resumes(t, false); return conn })
	client.calls(t, 21, func() jsonrpc.Conn { return old })
	for _, r := range f {
		if r != a {
			r.sees("a", There)
			a.sees(r.name, There)
		}
	}
	wantRecvEnds(t, old, errMoved)
	client.calls(t, 22, func() jsonrpc.Conn { return conn })
	conntest.Eventually(t, "it is reported", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.Contains(a.became, "yielded "+keeper.name+" 1")
	})
}

// TestKeptBounds: a replica keeps no more than it has room for, and nothing when it leaves.
func TestKeptBounds(t *testing.T) {
	f := newFleet(t, "a", nil, nil)
	f["a"].HTTP.init()
	o := f["a"].HTTP.open
	kept := &o.directory.kept
	text := func(id, pad string, moves int) json.RawMessage {
		return json.RawMessage(fmt.Sprintf(`{"v":1,"id":"%s","moves":%d,"said":{"initialize":{"x":"%s"}}}`, id, moves, pad))
	}
	large := strings.Repeat("x", maxKept/2)
	if !kept.keep(&keeping{Of: "b", Records: []json.RawMessage{text("one", large, 1)}}) {
		t.Error("the first one was refused")
	}
	if kept.keep(&keeping{Of: "b", Records: []json.RawMessage{text("two", large, 1)}}) {
		t.Error("there is no room for the second one")
	}
	if !kept.keep(&keeping{Of: "b", Records: []json.RawMessage{text("one", "", 0)}}) || kept.bytes < maxKept/2 {
		t.Error("an old record replaced a newer one")
	}
	if !kept.keep(&keeping{Of: "b", Records: []json.RawMessage{text("one", "", 2), text("two", large, 1), json.RawMessage(`{}`)}, Forget: []string{"one"}}) {
		t.Error("there is room after the first one is smaller")
	}
	if len(kept.byID) != 1 || kept.byID["two"] == nil {
		t.Error("the wrong ones are kept")
	}
	kept.keep(&keeping{Of: "c", Forget: []string{"two"}})
	if len(kept.byID) != 1 {
		t.Error("another replica made it forget")
	}
	now := time.Now()
	kept.expire(now, nil, time.Minute)
	kept.expire(now.Add(time.Second), map[string]bool{"b": true}, time.Minute)
	kept.expire(now.Add(2*time.Minute), nil, time.Minute)
	if len(kept.byID) != 1 {
		t.Error("the time counts from when the owner has gone")
	}
	kept.expire(now.Add(4*time.Minute), nil, time.Minute)
	if len(kept.byID) != 0 || kept.bytes != 0 {
		t.Errorf("%d bytes are left", kept.bytes)
	}
	o.drain()
	if kept.keep(&keeping{Of: "b", Records: []json.RawMessage{text("one", "", 0)}}) {
		t.Error("a replica that leaves keeps something")
	}
}
