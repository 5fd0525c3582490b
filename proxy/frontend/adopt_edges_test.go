package frontend

import (
	"net/http"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
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
