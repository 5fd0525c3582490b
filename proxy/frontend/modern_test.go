package frontend

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// TestModernPlain: a response that comes soon is sent as JSON, with the status of its code, under
// the client's id.
func TestModernPlain(t *testing.T) {
	ts := newPrincipalServer(t, nil)
	c := ts.at("/mcp")
	var conn jsonrpc.Conn
	for i, tt := range []struct {
		answer string // member and value
		status int
	}{
		{`"result":{"x":1.0,"y":12345678901234567890}`, 200},
		{`"error":{"code":-32602,"message":"x"}`, 200},
		{`"error":{"code":-32603,"message":"x"}`, 200},
		{`"error":{"code":-32601,"message":"x"}`, 404},
		{`"error":{"code":-32020,"message":"x"}`, 400},
		{`"error":{"code":-32021,"message":"x","data":{}}`, 400},
		{`"error":{"code":-32022,"message":"x"}`, 400},
	} {
		id := []string{`"s\u00e9"`, `12345678901234567890`, `1.0`, `-1`}[i%4]
		got := c.send(c.modern(id, "x", `"a": [1.0]`))
		if conn == nil {
			conn = conntest.Await(t, "connection", ts.conns)
		}
		m := conntest.Recv(t, conn)
		wantText(t, m, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"x","params":{"a": [1.0],%s}}`, i+1, metaText))
		answer := decode(t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"z":1,%s}`, i+1, tt.answer))
		conn.Send(answer)
		resp := conntest.Await(t, "response", got)
		wantBody(t, resp, tt.status, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"z":1,%s}`, id, tt.answer))
		if resp.Header.Get("Mcp-Session-Id") != "" {
			t.Error("there is a session")
		}
	}
}

// TestModernHeaders: the headers that repeat arguments are passed on, and no others. A client
// without any is marked so.
func TestModernHeaders(t *testing.T) {
	ts := newPrincipalServer(t, nil)
	c := ts.at("/mcp")
	send := func(set ...string) {
		req := c.modern("1", "tools/call", `"name":"a"`, set...)
		req.Header.Add("Mcp-Param-Two", "1")
		req.Header.Add("mcp-param-two", "2")
		c.send(req)
	}
	c.send(c.modern("1", "tools/call", `"name":"a"`))
	conn := conntest.Await(t, "connection", ts.conns)
	if m := conntest.Recv(t, conn); m.Headers == nil || len(m.Headers) > 0 {
		t.Errorf("headers %v, want none", m.Headers)
	}
	send("mcp-param-ReGion", "=?base64?w6k=?=", "Mcp-Params", "x")
	want := map[string][]string{"mcp-param-region": {"=?base64?w6k=?="}, "mcp-param-two": {"1", "2"}}
	m := conntest.Recv(t, conn)
	if !reflect.DeepEqual(m.Headers, want) {
		t.Errorf("headers %v, want %v", m.Headers, want)
	}
	if text := string(m.Append(nil)); strings.Contains(strings.ToLower(text), "param-") {
		t.Errorf("they travel: %s", text)
	}
}

// TestModernStream: messages before the response make it an event stream without ids, which the
// response ends.
func TestModernStream(t *testing.T) {
	ts := newPrincipalServer(t, nil)
	c := ts.at("/mcp/files")
	got := c.send(c.modern(`"7"`, "tools/call", `"name":"a"`))
	conn := conntest.Await(t, "connection", ts.conns)
	m := conntest.Recv(t, conn)
	conn.Send(noted(m, "notifications/progress", `{"progressToken":1.0}`))
	resp := conntest.Await(t, "response", got)
	if resp.Header.Get("X-Accel-Buffering") != "no" {
		t.Error("boxes on the way may hold it back")
	}
	stream := newEvents(t, resp)
	ev := stream.one()
	wantText(t, ev.message(t), `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1.0}}`)
	conn.Send(note("notifications/unrelated"))
	conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(9), "ping", nil))
	conn.Send(jsonrpc.NewResult(jsonrpc.IntID(999), json.RawMessage(`{}`)))
	conn.Send(jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "x"}))
	last := stream.one()
	wantText(t, last.message(t), `{"jsonrpc":"2.0","id":"7","error":{"code":-32601,"message":"x"}}`)
	if ev.LastEventID != "" || last.LastEventID != "" {
		t.Error("events have ids")
	}
	stream.end()
}

// TestModernTime: a response that takes long still has its status; only after 15 s the stream
// begins, and comments keep it alive.
func TestModernTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, conns := newBubblePrincipals(t)
		got := c.send(c.modern("1", "x", ""))
		conn := <-conns
		m := conntest.Recv(t, conn)
		time.Sleep(keepAlive - time.Millisecond)
		conn.Send(jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: -32601, Message: "m"}))
		wantBody(t, <-got, 404, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"m"}}`)

		start := time.Now()
		got = c.send(c.modern("1", "x", ""))
		m = conntest.Recv(t, conn)
		resp := <-got
		if took := time.Since(start); took != keepAlive {
			t.Errorf("the stream began after %v", took)
		}
		buf := make([]byte, 64)
		n, _ := resp.Body.Read(buf)
		if took := time.Since(start); string(buf[:n]) != ":\n\n" || took != 2*keepAlive {
			t.Errorf("%q after %v", buf[:n], took)
		}
		conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{}`)))
		wantText(t, newEvents(t, resp).one().message(t), `{"jsonrpc":"2.0","id":1,"result":{}}`)
	})
}

// TestD32 drops a POST: the request is cancelled at once, and a late response is dropped.
func TestD32_BeforeHeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, conns := newBubblePrincipals(t)
		ctx, drop := context.WithCancel(t.Context())
		c.send(c.modern("1", "x", "").WithContext(ctx))
		conn := <-conns
		m := conntest.Recv(t, conn)
		time.Sleep(plainWait / 2)
		start := time.Now()
		drop()
		wantCancel(t, conn, m)
		if took := time.Since(start); took != 0 {
			t.Errorf("cancelled after %v", took)
		}
		wantDead(t, conn, c, m)
	})
}

func TestD32_InStream(t *testing.T) {
	ts := newPrincipalServer(t, nil)
	c := ts.at("/mcp")
	got := c.send(c.modern("1", "tools/call", `"name":"a"`))
	conn := conntest.Await(t, "connection", ts.conns)
	m := conntest.Recv(t, conn)
	conn.Send(noted(m, "notifications/message", `{}`))
	stream := newEvents(t, conntest.Await(t, "response", got))
	stream.one()
	stream.close()
	wantCancel(t, conn, m)
	wantDead(t, conn, c, m)
}

func TestD32_BeforeTheFirstEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, conns := newBubblePrincipals(t)
		got := c.send(c.modern("1", "x", ""))
		conn := <-conns
		m := conntest.Recv(t, conn)
		(<-got).Body.Close() // the stream has begun by itself
		wantCancel(t, conn, m)
		wantDead(t, conn, c, m)
	})
}

func TestD32_Listen(t *testing.T) {
	ts := newPrincipalServer(t, nil)
	c := ts.at("/mcp")
	got := c.send(c.modern("1", mcp.MethodListen, `"notifications":{}`))
	conn := conntest.Await(t, "connection", ts.conns)
	m := conntest.Recv(t, conn)
	conn.Send(noted(m, "notifications/subscriptions/acknowledged", `{"notifications":{}}`))
	stream := newEvents(t, conntest.Await(t, "response", got))
	stream.one()
	stream.close()
	wantCancel(t, conn, m)
	wantDead(t, conn, c, m)
}

// TestD32_Unread drops a POST that Recv has not returned: there is nothing to cancel or to run.
func TestD32_Unread(t *testing.T) {
	ts := newPrincipalServer(t, nil)
	c := ts.at("/mcp")
	ctx, drop := context.WithCancel(t.Context())
	c.send(c.modern("1", "x", "").WithContext(ctx))
	conn := conntest.Await(t, "connection", ts.conns)
	pc := ts.onlyPrincipal()
	conntest.Eventually(t, "the request is there", func() bool { return pc.holds() != connHolds{} })
	drop()
	conntest.Eventually(t, "the request is gone", func() bool { return pc.holds() == connHolds{} })
	c.send(c.modern("2", "y", ""))
	if m := conntest.Recv(t, conn); m.Method != "y" {
		t.Errorf("received %s", m.Append(nil))
	}
}

// wantDead sends late messages for m, which must be dropped, and checks that the conn still works.
func wantDead(t *testing.T, conn jsonrpc.Conn, c *testClient, m *jsonrpc.Message) {
	t.Helper()
	for _, late := range []*jsonrpc.Message{noted(m, "notifications/late", `{}`), jsonrpc.NewResult(m.ID, json.RawMessage(`{}`))} {
		if err := conn.Send(late); err != nil {
			t.Errorf("Send of what is late: %v", err)
		}
	}
	got := c.send(c.modern(`"again"`, "x", ""))
	next := conntest.Recv(t, conn)
	conn.Send(jsonrpc.NewResult(next.ID, json.RawMessage(`{}`)))
	wantText(t, onlyMessage(t, conntest.Await(t, "response", got)), `{"jsonrpc":"2.0","id":"again","result":{}}`)
}

// TestModernSameIDs has two clients use one id and one progress token at once.
func TestModernSameIDs(t *testing.T) {
	ts := newPrincipalServer(t, nil)
	c := ts.at("/mcp")
	ask := func(path string) *http.Request { return c.modern("1", "x", `"which":"`+path+`"`) }
	first := c.send(ask("a"))
	conn := conntest.Await(t, "connection", ts.conns)
	a := conntest.Recv(t, conn)
	second := c.send(ask("b"))
	b := conntest.Recv(t, conn)
	for _, m := range []*jsonrpc.Message{b, a} {
		conn.Send(noted(m, "notifications/progress", `{"progressToken":"t","progress":`+m.ID.String()+`}`))
	}
	for _, m := range []*jsonrpc.Message{a, b} {
		conn.Send(jsonrpc.NewResult(m.ID, m.Params))
	}
	for got, m := range map[<-chan *http.Response]*jsonrpc.Message{first: a, second: b} {
		stream := newEvents(t, conntest.Await(t, "response", got))
		wantText(t, stream.one().message(t), `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":`+m.ID.String()+`}}`)
		wantText(t, stream.one().message(t), `{"jsonrpc":"2.0","id":1,"result":`+string(m.Params)+`}`)
		stream.end()
	}
}

// TestModernListen: the messages of a listen have the client's own id, however they are addressed.
func TestModernListen(t *testing.T) {
	ts := newPrincipalServer(t, nil)
	c := ts.at("/mcp")
	var conn jsonrpc.Conn
	for _, id := range []string{`"l\/1"`, `123456789012345678901234567890`} {
		got := c.send(c.modern(id, mcp.MethodListen, `"notifications":{"toolsListChanged":true}`))
		if conn == nil {
			conn = conntest.Await(t, "connection", ts.conns)
		}
		m := conntest.Recv(t, conn)
		own := `"io.modelcontextprotocol/subscriptionId":`
		conn.Send(noted(m, "notifications/subscriptions/acknowledged", `{"_meta":{"a":1,`+own+m.ID.String()+`},"notifications":{}}`))
		stream := newEvents(t, conntest.Await(t, "response", got))
		wantText(t, stream.one().message(t), `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"a":1,`+own+id+`},"notifications":{}}}`)
		conn.Send(jsonrpc.NewNotification("notifications/tools/list_changed", json.RawMessage(`{"_meta":{`+own+m.ID.String()+`}}`)))
		wantText(t, stream.one().message(t), `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{`+own+id+`}}}`)
		conn.Send(noted(m, "notifications/resources/list_changed", ``))
		wantText(t, stream.one().message(t), `{"jsonrpc":"2.0","method":"notifications/resources/list_changed","params":{"_meta":{`+own+id+`}}}`)
		conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"resultType":"complete","_meta":{`+own+m.ID.String()+`}}`)))
		wantText(t, stream.one().message(t), `{"jsonrpc":"2.0","id":`+id+`,"result":{"resultType":"complete","_meta":{`+own+id+`}}}`)
		stream.end()
	}
}

// TestModernListenRefused: an error does not begin a stream.
func TestModernListenRefused(t *testing.T) {
	ts := newTestServer(t, nil)
	c := ts.at("/mcp")
	wantBody(t, c.do(c.modern("1", mcp.MethodListen, "")), 404, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found"}}`)
}

// TestModernSlowReader uses a client that does not read its stream: others continue, and its
// request is cancelled when too much waits.
func TestModernSlowReader(t *testing.T) {
	ts := newPrincipalServer(t, nil)
	c := ts.at("/mcp")
	slow := c.send(c.modern("1", "x", ""))
	conn := conntest.Await(t, "connection", ts.conns)
	m := conntest.Recv(t, conn)
	large := noted(m, "notifications/message", `{"data":"`+strings.Repeat("x", 1<<20)+`"}`)
	conn.Send(large)
	conntest.Await(t, "response", slow)
	pc := ts.onlyPrincipal()
	for sent := 0; pc.holds().waiting > 0; sent++ {
		if sent > 100 {
			t.Fatal("there is no bound")
		}
		if err := conn.Send(large); err != nil {
			t.Fatal(err)
		}
	}
	wantCancel(t, conn, m)
	other := c.send(c.modern("2", "x", ""))
	conn.Send(jsonrpc.NewResult(conntest.Recv(t, conn).ID, json.RawMessage(`{}`)))
	wantText(t, onlyMessage(t, conntest.Await(t, "response", other)), `{"jsonrpc":"2.0","id":2,"result":{}}`)
}

// TestModernLargeResponse: a large response does not count as unread.
func TestModernLargeResponse(t *testing.T) {
	t.Parallel()
	ts := newPrincipalServer(t, nil)
	c := ts.at("/mcp")
	got := c.send(c.modern("1", "x", ""))
	conn := conntest.Await(t, "connection", ts.conns)
	m := conntest.Recv(t, conn)
	large := `{"x":"` + strings.Repeat("x", 3*maxBacklog) + `"}`
	conn.Send(noted(m, "notifications/x", large))
	conn.Send(jsonrpc.NewResult(m.ID, json.RawMessage(large)))
	stream := newEvents(t, conntest.Await(t, "response", got))
	stream.one()
	wantText(t, stream.one().message(t), `{"jsonrpc":"2.0","id":1,"result":`+large+`}`)
}

// TestModernLongStream: what has been read no longer counts.
func TestModernLongStream(t *testing.T) {
	t.Parallel()
	ts := newPrincipalServer(t, nil)
	c := ts.at("/mcp")
	got := c.send(c.modern("1", "x", ""))
	conn := conntest.Await(t, "connection", ts.conns)
	m := conntest.Recv(t, conn)
	large := noted(m, "notifications/x", `{"x":"`+strings.Repeat("x", maxBacklog/4)+`"}`)
	conn.Send(large)
	stream := newEvents(t, conntest.Await(t, "response", got))
	for range 12 {
		wantText(t, stream.one().message(t), string(large.Append(nil)))
		conn.Send(large)
	}
	if ts.onlyPrincipal().holds().waiting != 1 {
		t.Error("it was given up")
	}
}
