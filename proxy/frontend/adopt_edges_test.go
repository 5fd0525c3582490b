package frontend

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// split lets r and all others see each other so.
func (r *replica) split(at Where) {
	for _, other := range r.fleet {
		if other != r {
			other.sees(r.name, at)
			r.sees(other.name, at)
		}
	}
}

// TestFoundByItsMaker: the replica that made an id learns who has continued the session, also if its own copy has
// ended before it could be reached again.
func TestFoundByItsMaker(t *testing.T) {
	f, client, old, keeper, other := kept(t)
	a := f["a"]
	a.split(Gone)
	var conn jsonrpc.Conn
	client.through(keeper).calls(t, 20, func() jsonrpc.Conn { conn, _ = keeper.resumes(t, false); return conn })
	a.only().end(errGone, false)
	wantRecvEnds(t, old, errGone)
	a.split(There)
	conntest.Eventually(t, "its maker knows", func() bool { return a.HTTP.open.directory.gone.to(client.session) != "" })
	client.through(other).calls(t, 21, func() jsonrpc.Conn { return conn })
	client.calls(t, 22, func() jsonrpc.Conn { return conn })
	wantStatus(t, client.delete(), http.StatusNoContent)
	wantRefusal(t, client.through(other).post(ping), http.StatusNotFound, -32600)
}

// TestMovesBack: a session that another replica has continued may move back to the one that has yielded it.
func TestMovesBack(t *testing.T) {
	f, client, old, keeper, other := kept(t)
	a := f["a"]
	a.split(Gone)
	var conn jsonrpc.Conn
	client.through(keeper).calls(t, 20, func() jsonrpc.Conn { conn, _ = keeper.resumes(t, false); return conn })
	a.split(There)
	wantRecvEnds(t, old, errMoved)
	keeper.sees(other.name, Away) // so it must be a
	if n := keeper.leaves(t); n != 1 {
		t.Errorf("%d sessions were moved, want 1", n)
	}
	a.HTTP.open.directory.yield(client.session, keeper.name, 1) // an answer that comes late
	if _, here := a.HTTP.open.directory.whereabouts(client.session); !here {
		t.Fatal("it is nowhere")
	}
	keeper.dies()
	client.through(other).calls(t, 21, func() jsonrpc.Conn { conn, _ = a.resumes(t, false); return conn })
	client.calls(t, 22, func() jsonrpc.Conn { return conn })
}

// TestKeptOnward: a session that moves on before its client has used it is kept in place of what was kept for the
// replica between.
func TestKeptOnward(t *testing.T) {
	f := newFleet(t, "a b c d", nil, nil)
	a, b, c, d := f["a"], f["b"], f["c"], f["d"]
	client, _ := a.connectManual("2025-11-25")
	a.sees("c", Away)
	a.sees("d", Away)
	a.leaves(t)
	a.dies()
	b.sees("d", Away) // so c keeps what b and d have
	d.sees("b", Gone)
	f.keepEach(t)
	keeps := func(owner string, seq int64) func() bool {
		return func() bool {
			k := c.HTTP.open.directory.kept.of(client.session)
			return k != nil && k.Owner == owner && k.Seq >= seq
		}
	}
	conntest.Eventually(t, "c keeps it for b", keeps("b", 1))
	for seq := range int64(3) { // so that the record of b has the higher number
		b.HTTP.open.directory.changes.note(client.session)
		conntest.Eventually(t, "c keeps it for b", keeps("b", seq+2))
	}
	b.sees("c", Away)
	b.sees("d", There)
	if n := b.leaves(t); n != 1 {
		t.Errorf("%d sessions were moved, want 1", n)
	}
	conntest.Eventually(t, "c keeps it for d", keeps("d", 1))
}

// TestForgottenLater: a replica that cannot be reached when a session ends forgets it as soon as it can.
func TestForgottenLater(t *testing.T) {
	f, client, _, keeper, other := kept(t)
	a := f["a"]
	a.sees(keeper.name, Away)
	if f.keeping(t, client.session, "initialized", keeper) != other {
		t.Fatal("nobody else keeps it")
	}
	wantStatus(t, client.delete(), http.StatusNoContent)
	conntest.Eventually(t, "it is forgotten", func() bool { return other.HTTP.open.directory.kept.of(client.session) == nil })
	a.sees(keeper.name, There)
	conntest.Eventually(t, "it is forgotten here, too", func() bool { return keeper.HTTP.open.directory.kept.of(client.session) == nil })
}

// TestKeptUntilAnother: a replica forgets a session that another one is to keep only when that one does.
func TestKeptUntilAnother(t *testing.T) {
	var breaks atomic.Pointer[replica]
	asked := make(chan struct{}, 100)
	f := newFleet(t, "a b c", nil, func(name string, h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if it := breaks.Load(); it != nil && it.name == name && r.Method == http.MethodPut {
				asked <- struct{}{}
				panic(http.ErrAbortHandler)
			}
			h.ServeHTTP(w, r)
		})
	})
	a := f["a"]
	client, _ := a.connectManual("2025-11-25")
	f.keepEach(t)
	keeper := f.keeping(t, client.session, "")
	other := f["b"]
	if keeper == other {
		other = f["c"]
	}
	breaks.Store(other)
	a.mu.Lock()
	a.ready = other.name
	a.mu.Unlock()
	for range 3 { // what was sent at the first time has arrived
		conntest.Await(t, "a record", asked)
	}
	if keeper.HTTP.open.directory.kept.of(client.session) == nil {
		t.Error("nobody keeps it")
	}
	breaks.Store(nil)
	if f.keeping(t, client.session, "", keeper) != other {
		t.Error("the wrong one keeps it")
	}
	conntest.Eventually(t, "it is forgotten", func() bool { return keeper.HTTP.open.directory.kept.of(client.session) == nil })
}

// TestKeptWhileItBegins: a session that has moved here may begin while its record is written for the one that keeps it.
func TestKeptWhileItBegins(t *testing.T) {
	f := newFleet(t, "a", nil, nil)
	f["a"].HTTP.init()
	o := f["a"].HTTP.open
	from := caller{who: &identity.Identity{}}
	for i := range 8 {
		text := fmt.Appendf(nil, `{"v":1,"id":"a.s%d.mac","said":{"initialize":{"x":"%s"},"subscribed":{"x:y":{"uri":"x:y"}}}}`, i, strings.Repeat("x", 1<<16))
		r := new(record)
		if json.Unmarshal(text, r) != nil || !o.directory.take(r, text) {
			t.Fatal("it was refused")
		}
		writes, wrote := make(chan struct{}), make(chan struct{})
		var begun atomic.Bool
		go func() {
			defer close(wrote)
			for close(writes); !begun.Load(); {
				o.directory.recordOf(r.ID, 1, "a", "")
			}
		}()
		<-writes
		s := o.find(t.Context(), r.ID, from, false)
		if s == nil {
			t.Fatal("it does not begin")
		}
		s.mu.Lock()
		s.said.note(jsonrpc.NewRequest(jsonrpc.IntID(1), "resources/subscribe", json.RawMessage(`{"uri":"a:b"}`)))
		s.mu.Unlock()
		begun.Store(true)
		<-wrote
		s.idle.release()
		s.end(errServed, true)
	}
}

// TestKeeperLeaves: a replica that leaves hands on what it keeps for one that has died, also while that only cannot be
// reached.
func TestKeeperLeaves(t *testing.T) {
	for name, at := range map[string]Where{"declared dead": Gone, "not yet": Away} {
		t.Run(name, func(t *testing.T) {
			f, client, _, keeper, other := kept(t)
			f["a"].dies()
			keeper.sees("a", at)
			keeper.leaves(t)
			keeper.dies()
			client.through(other).calls(t, 20, func() jsonrpc.Conn { conn, _ := other.resumes(t, false); return conn })
		})
	}
}

// TestNotAdoptedOnceHeard: a replica that stood still, and has told this one so, keeps its sessions, also while this
// one still holds it for dead.
func TestNotAdoptedOnceHeard(t *testing.T) {
	f, client, old, keeper, _ := kept(t)
	a := f["a"]
	keeper.sees("a", Gone)
	p := &a.HTTP.open.keeper.pulse
	p.mu.Lock()
	p.last.Store(time.Now().Add(-time.Minute).UnixNano())
	p.mu.Unlock()
	client.calls(t, 20, func() jsonrpc.Conn { return old })
	wantRefusal(t, client.through(keeper).post(ping), http.StatusServiceUnavailable, -32603)
	keeper.sees("a", There)
	client.through(keeper).calls(t, 21, func() jsonrpc.Conn { return old })
}

// TestAdoptedOnceByMany: all requests that arrive at once after a replica has died find its session.
func TestAdoptedOnceByMany(t *testing.T) {
	f, client, _, keeper, other := kept(t)
	f["a"].dies()
	var all []<-chan *http.Response
	for i := range 32 {
		to := client.through([]*replica{keeper, other}[i%2])
		all = append(all, to.send(to.request("POST", `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)))
	}
	keeper.resumes(t, false)
	for _, resp := range all {
		wantStatus(t, conntest.Await(t, "response", resp), http.StatusAccepted)
	}
}
