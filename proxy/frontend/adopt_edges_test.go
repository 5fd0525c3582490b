package frontend

import (
	"net/http"
	"testing"

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
	conntest.Eventually(t, "its maker knows", func() bool { return a.HTTP.open.whereTo(client.session) != "" })
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
	a.HTTP.open.yield(client.session, keeper.name, 1) // an answer that comes late
	if _, here := a.HTTP.open.whereabouts(client.session); !here {
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
			k := c.HTTP.open.keeps(client.session)
			return k != nil && k.Owner == owner && k.Seq >= seq
		}
	}
	conntest.Eventually(t, "c keeps it for b", keeps("b", 1))
	for seq := range int64(3) { // so that the record of b has the higher number
		b.HTTP.open.keeper.note(client.session)
		conntest.Eventually(t, "c keeps it for b", keeps("b", seq+2))
	}
	b.sees("c", Away)
	b.sees("d", There)
	if n := b.leaves(t); n != 1 {
		t.Errorf("%d sessions were moved, want 1", n)
	}
	conntest.Eventually(t, "c keeps it for d", keeps("d", 1))
}
