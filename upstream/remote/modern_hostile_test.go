package remote

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// TestModernUnusable are answers that are none. The stream goes on.
func TestModernUnusable(t *testing.T) {
	type handler = func(w http.ResponseWriter, m *jsonrpc.Message)
	as := func(kind, body string) handler {
		return func(w http.ResponseWriter, _ *jsonrpc.Message) {
			w.Header().Set("Content-Type", kind)
			io.WriteString(w, body)
		}
	}
	for name, tt := range map[string]struct {
		answer handler
		cause  string
	}{
		"HTML":                {as("text/html", "<html>"), "neither JSON nor an event stream"},
		"nothing":             {func(http.ResponseWriter, *jsonrpc.Message) {}, "empty response"},
		"an empty body":       {as(typeJSON, ""), "empty message"},
		"accepted":            {func(w http.ResponseWriter, _ *jsonrpc.Message) { w.WriteHeader(202) }, "empty response"},
		"another's answer":    {as(typeJSON, `{"jsonrpc":"2.0","id":6,"result":{}}`), "a response to another request"},
		"another's event":     {as(typeSSE, "data: {\"jsonrpc\":\"2.0\",\"id\":6,\"result\":{}}\n\n"), "a response to another request"},
		"a question as body":  {as(typeJSON, `{"jsonrpc":"2.0","id":5,"method":"roots/list"}`), "no response to the request"},
		"both of result":      {as(typeJSON, `{"jsonrpc":"2.0","id":5,"result":{},"error":{}}`), "both \\\"result\\\" and \\\"error\\\""},
		"a malformed reply":   {as(typeSSE, "data: {\"jsonrpc\":\"1.0\",\"id\":5,\"result\":{}}\n\n"), "\\\"jsonrpc\\\" is not \\\"2.0\\\""},
		"another's id as 5.5": {as(typeJSON, `{"jsonrpc":"2.0","id":5.5,"result":{}}`), "\\\"id\\\" is not a string or an integer"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) { tt.answer(w, m) })
			c := connectModern(t, f)
			c.request(6, "subscriptions/listen", params("")) // whose answer none of this is
			c.recv()
			c.request(5, "tools/call", params(`"name":"t"`))
			m := c.recv()
			if m.ID != jsonrpc.IntID(5) || !strings.Contains(string(m.Error), `"reason":"invalid_response"`) || !strings.Contains(string(m.Error), `"cause":"`+tt.cause) {
				t.Errorf("got %s", m.Append(nil))
			}
			c.request(7, "x", params(""))
			wantResult(t, c.recv(), 7, `{}`)
			if n := strings.Count(fmt.Sprint(f.all()), "tools/call"); n != 1 {
				t.Errorf("posted %d times", n)
			}
		})
	}
}

// TestModernEndless leaves the stream usable, and what nobody receives makes the
// server wait, not us grow. Cancelling ends it, and so does Close.
func TestModernEndless(t *testing.T) {
	f := newFake(t)
	over := make(chan struct{}, 2)
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
		stream(w, "")
		flood(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\",\"params\":{\"x\":\""+strings.Repeat("x", 1000)+"\"}}\n\n", 1<<62)
		over <- struct{}{}
	})
	c := connectModern(t, f)
	c.request(1, "tools/call", params(`"name":"t"`))
	for range 1000 {
		if m := c.recv(); m.Method != "notifications/x" {
			t.Fatalf("got %s", m.Append(nil))
		}
	}
	before := memory()
	c.request(2, "tools/call", params(`"name":"t"`))
	f.await("tools/call", 2)
	c.cancel(1)
	go func() {
		for {
			if _, err := c.Recv(); err != nil {
				return
			}
		}
	}()
	<-over
	if after := memory(); after > before+20<<20 {
		t.Errorf("%d bytes before, %d after", before, after)
	}
	c.close()
	<-over
}

// TestModernStalledReceiver has its calls cancelled though nobody receives, and
// others get their slots.
func TestModernStalledReceiver(t *testing.T) {
	f := newFake(t)
	over := make(chan struct{}, 1)
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
		stream(w, "")
		flood(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n", 1<<62)
		over <- struct{}{}
	})
	s, _ := modernServer(t, f)
	s.MaxConcurrent = 1
	c, other := dialModern(t, s), dialModern(t, s)
	c.request(1, "tools/call", params(`"name":"t"`))
	f.await("tools/call", 1)
	conntest.Eventually(t, "messages that wait", func() bool { return len(c.Conn.(*modern).in) == inDepth })
	c.cancel(1)
	<-over
	other.request(1, "x", params(""))
	wantResult(t, other.recv(), 1, "{}")
}
