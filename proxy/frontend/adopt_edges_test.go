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
