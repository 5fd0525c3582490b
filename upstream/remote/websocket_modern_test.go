package remote

import (
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// TestModernWebSocket carries the stream as it is, and says what its
// notifications are about.
func TestModernWebSocket(t *testing.T) {
	url, conns := wsFake(t)
	s, _ := server(t, url)
	c := dialModern(t, s)
	far := wsAwait(t, conns)
	defer far.Close()
	sent := func(want string) {
		t.Helper()
		if m := conntest.Recv(t, far); string(m.Append(nil)) != want {
			t.Errorf("server received %s, want %s", m.Append(nil), want)
		}
	}
	c.request(1, "subscriptions/listen", params(""))
	sent(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":` + params("") + `}`)
	c.request(2, "tools/call", params(`"name":"t"`))
	sent(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":` + params(`"name":"t"`) + `}`)
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"roots/list"}`,
		`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":"1"}}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":1.0}}`,
		`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":{}}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		`{"jsonrpc":"2.0","id":2,"result":{}}`,
	} {
		m, err := jsonrpc.Decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		far.Send(m)
	}
	for _, related := range []string{"1", "2", "", "", "1"} {
		if m := c.recv(); !m.IsNotification() || m.Related.String() != related {
			t.Errorf("got %s related to %q, want %q", m.Append(nil), m.Related, related)
		}
	}
	wantResult(t, c.recv(), 2, "{}")
	c.cancel(1)
	sent(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	go far.Close()
	if end := c.end(); !end.Delivered {
		t.Errorf("the end is %+v", end)
	}
}
