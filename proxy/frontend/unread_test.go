package frontend

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// TestUnread has clients that do not read their responses: what finds no room is
// replaced by an error, small ones are not, and what has been read or given up makes
// room again.
func TestUnread(t *testing.T) {
	large := `{"x":"` + strings.Repeat("x", 32<<20) + `"}` // more than sockets hold
	const overloaded = `{"jsonrpc":"2.0","id":%d,"error":{"code":-32603,"message":"Too many responses that nobody reads","data":{"reason":"overloaded","phase":"in_flight","retryable":false}}}`
	few := func(h *HTTP) {
		h.init()
		h.open.unread.limit = int64(len(large)) + 50 // with what stands around it
	}
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			var ts *testServer
			var conn jsonrpc.Conn
			var request func(id int) *http.Request
			var c *testClient
			if era == "modern" {
				ts = newPrincipalServer(t, few)
				c = ts.at("/mcp")
				request = func(id int) *http.Request { return c.modern(fmt.Sprint(id), "x", "") }
			} else {
				ts = newManualServer(t, few)
				c, conn = ts.connectManual("2025-11-25")
				request = func(id int) *http.Request { return c.request(http.MethodPost, fmt.Sprintf(call, id)) }
			}
			ask := func(id int, result string) *http.Response {
				got := c.send(request(id))
				if conn == nil {
					conn = conntest.Await(t, "connection", ts.conns)
				}
				m := conntest.Recv(t, conn)
				conn.Send(jsonrpc.NewResult(m.ID, []byte(result)))
				return conntest.Await(t, "response", got)
			}
			first := ask(1, large)
			wantText(t, onlyMessage(t, ask(2, large)), fmt.Sprintf(overloaded, 2))
			wantText(t, onlyMessage(t, ask(3, `{}`)), `{"jsonrpc":"2.0","id":3,"result":{}}`)
			if n, err := io.Copy(io.Discard, first.Body); err != nil || n < int64(len(large)) {
				t.Errorf("read %d bytes: %v", n, err)
			}
			empty := func() bool { return ts.open.unread.bytes.Load() == 0 }
			conntest.Eventually(t, "there is room", empty)
			ask(4, large).Body.Close() // it goes away
			conntest.Eventually(t, "there is room", empty)
			if n, _ := io.Copy(io.Discard, ask(5, large).Body); n < int64(len(large)) {
				t.Errorf("read %d bytes", n)
			}
		})
	}
}

// One principal that reads nothing takes no room from another, but for what several take
// together.
func TestUnreadShares(t *testing.T) {
	u := newUnread(jsonrpc.Limits{})
	who := func(i int) identity.Principal { return identity.Principal{Name: fmt.Sprint(i)} }
	of := make([]*share, 10)
	for i := range of {
		of[i] = u.join(who(i))
	}
	limit := int(u.limit)
	of[0].add(limit)
	if of[0].hasRoom(smallBody+1) || !of[0].hasRoom(smallBody) {
		t.Error("one principal has more, or less, than all have together")
	}
	for i := 1; i < 9; i++ {
		if !of[i].hasRoom(limit/8) || of[i].hasRoom(limit/8+1) {
			t.Errorf("principal %d has not an eighth", i)
		}
		of[i].add(limit / 8)
	}
	if of[9].hasRoom(smallBody + 1) {
		t.Error("there is room beyond what others may have")
	}
	of[0].add(-limit)
	if !of[9].hasRoom(limit/8) || u.join(who(1)) != of[1] {
		t.Error("what was read is not free again, or a principal has two shares")
	}
	u.leave(who(1))
	for i := range of {
		u.leave(who(i))
	}
	if len(u.shares) > 0 {
		t.Error(len(u.shares), "shares of nobody")
	}
}
