package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/jsonrpc/conntest"
)

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{},"vendor/x":1e400}`

// params returns the params of a modern request.
func params(members string) string {
	if members != "" {
		members += ","
	}
	return "{" + members + modernMeta + "}"
}

// dialModern begins a stream of the modern era.
func dialModern(t *testing.T, s *Server) *client {
	t.Helper()
	c, err := s.DialModern(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	cl := &client{c, t}
	t.Cleanup(cl.close)
	return cl
}

// modernServer returns a Server for f that knows that the tools have no
// annotations, unless f has a tools/list of its own.
func modernServer(t *testing.T, f *fake) (*Server, *logs) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.on[methodToolsList] == nil {
		f.on[methodToolsList] = func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
			reply(w, m, `{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}`)
		}
	}
	return server(t, f.URL)
}

// connectModern begins a stream to f, which has been asked for its tools.
func connectModern(t *testing.T, f *fake) *client {
	t.Helper()
	s, _ := modernServer(t, f)
	c := dialModern(t, s)
	c.request(0, methodToolsList, params(""))
	c.recv()
	return c
}

// TestModernRequest is a POST that has all of the era and nothing of a session.
func TestModernRequest(t *testing.T) {
	f := newFake(t)
	seen := make(chan http.Header, 1)
	bodies := make(chan string, 1)
	f.any = func(w http.ResponseWriter, r *http.Request) bool {
		text, _ := io.ReadAll(r.Body)
		seen <- r.Header
		bodies <- string(text)
		w.Header().Set("Mcp-Session-Id", "a-session")
		m, _ := jsonrpc.Decode(text)
		reply(w, m, `{}`)
		return true
	}
	s, _ := server(t, f.URL)
	s.Headers = map[string]string{
		"Authorization": "Bearer x", "Mcp-Session-Id": "evil", "Mcp-Name": "evil", "Mcp-Method": "evil",
		"Mcp-Param-Evil": "evil", "MCP-Protocol-Version": "evil", "Last-Event-ID": "evil",
	}
	c := dialModern(t, s)
	tests := []struct{ method, params, name string }{
		{"server/discover", params(""), ""},
		{"resources/read", params(`"uri":"file:///ä b"`), "=?base64?ZmlsZTovLy/DpCBi?="},
		{"prompts/get", params(`"name":"plain name"`), "plain name"},
		{"prompts/get", params(`"name":"=?base64?eA==?="`), "=?base64?PT9iYXNlNjQ/ZUE9PT89?="},
		{"prompts/get", params(`"name":"a\nMcp-Session-Id: x"`), "=?base64?YQpNY3AtU2Vzc2lvbi1JZDogeA==?="},
		{"tasks/get", params(`"taskId":"t1"`), "t1"},
		{"tools/list", params(`"cursor":""`), ""},
	}
	for i, tt := range tests {
		c.request(int64(i), tt.method, tt.params)
		h, body := <-seen, <-bodies
		if m := c.recv(); m.Related != jsonrpc.IntID(int64(i)) || string(m.Result) != "{}" {
			t.Errorf("%s: got %s, related to %s", tt.method, m.Append(nil), m.Related)
		}
		want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, i, tt.method, tt.params)
		if body != want {
			t.Errorf("posted %s, want %s", body, want)
		}
		for name, value := range map[string]string{
			"Mcp-Method": tt.method, "Mcp-Name": tt.name, "Mcp-Protocol-Version": "2026-07-28", "Mcp-Session-Id": "",
			"Last-Event-Id": "", "Mcp-Param-Evil": "", "Authorization": "Bearer x", "Content-Type": "application/json",
			"Accept": "application/json, text/event-stream", "Accept-Encoding": "",
		} {
			if got := strings.Join(h.Values(name), ","); got != value {
				t.Errorf("%s: header %s is %q, want %q", tt.method, name, got, value)
			}
		}
	}
	c.close()
	if len(seen) > 0 {
		t.Error("more was posted when the stream was closed")
	}
}

// TestModernStream brings on what comes before the reply, with the request that it
// belongs to, and none of what the era does not have.
func TestModernStream(t *testing.T) {
	f := newFake(t)
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		stream(w, "id: 1\nretry: 10\ndata:\n\n: comment\n\n")
		stream(w, `data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":5,"progress":1}}`+"\n\n")
		stream(w, `data: {"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}`+"\n\n")
		stream(w, `data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`+"\n\n")
		stream(w, `data: {"jsonrpc":"2.0","id":"5","result":{"content":[1e400]}}`+"\n\n")
	})
	c := connectModern(t, f)
	c.request(5, "tools/call", params(`"name":"t"`))
	for _, method := range []string{"notifications/progress", "notifications/message", ""} {
		if m := c.recv(); m.Method != method || m.Related != jsonrpc.IntID(5) {
			t.Errorf("got %s, related to %q", m.Append(nil), m.Related)
		} else if method == "" {
			wantResult(t, m, 5, `{"content":[1e400]}`)
		}
	}
}

// TestModernErrors are the server's own, whatever the status.
func TestModernErrors(t *testing.T) {
	tests := []struct {
		status      int
		body, wants string
	}{
		{404, `{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"Method not found"}}`, `"error":{"code":-32601,"message":"Method not found"}`},
		{400, `{"jsonrpc":"2.0","error":{"code":-32021,"message":"x","data":{"requiredCapabilities":{}}}}`, `"data":{"requiredCapabilities":{}}`},
		{400, `{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"x"}}`, `-32602`},
		{200, `{"jsonrpc":"2.0","id":7,"error":{"code":-32602,"message":"x"}}`, `-32602`},
		{400, `{"jsonrpc":"2.0","id":8,"error":{"code":-32602,"message":"x"}}`, `"cause":"HTTP 400"`},
		{404, `not found`, `"cause":"HTTP 404"`},
		{502, `<html>`, `"cause":"HTTP 502","phase":"in_flight"`},
		{401, ``, `"cause":"HTTP 401"`},
	}
	for _, tt := range tests {
		f := newFake(t)
		f.handle("prompts/get", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(tt.status)
			io.WriteString(w, tt.body)
		})
		c := connectModern(t, f)
		c.request(7, "prompts/get", params(`"name":"p"`))
		if m := c.recv(); m.ID != jsonrpc.IntID(7) || !strings.Contains(string(m.Append(nil)), tt.wants) {
			t.Errorf("HTTP %d %s: got %s", tt.status, tt.body, m.Append(nil))
		}
		f.await("prompts/get", 1)
		c.request(8, "x", params(""))
		wantResult(t, c.recv(), 8, `{}`)
	}
}

// cut ends a connection in the middle of a response.
func cut(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err == nil {
		c.Close()
	}
}

// TestD31_D33 loses answers on their way. What may have had effects is not posted
// again, what has none is, once, with an id that nobody waits for.
func TestD31_D33_LostAnswers(t *testing.T) {
	loss := map[string]func(w http.ResponseWriter){
		"stream ended": func(w http.ResponseWriter) {
			stream(w, "id: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/x\"}\n\n")
		},
		"connection lost": cut,
	}
	for cause, lose := range loss {
		for _, method := range []string{"tools/call", "prompts/get", "tasks/get", "x/y", "tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read", "completion/complete", "server/discover"} {
			t.Run(method+" "+cause, func(t *testing.T) {
				f := newFake(t)
				c := connectModern(t, f)
				ids := make(chan string, 8)
				always := method == "resources/read"
				f.handle(method, func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
					ids <- m.ID.String()
					if len(ids) > 1 && !always {
						reply(w, m, `{"again":1}`)
						return
					}
					lose(w)
				})
				c.request(5, method, params(`"name":"t","uri":"u","taskId":"t"`))
				m := c.recv()
				posts := 0
				for m.IsNotification() {
					m, posts = c.recv(), posts+1
				}
				switch {
				case !repeatable(method):
					wantError(t, m, 5, jsonrpc.ReasonClosed, cause, jsonrpc.InFlight)
					if len(ids) != 1 {
						t.Errorf("posted %d times", len(ids))
					}
				case always:
					wantError(t, m, 5, jsonrpc.ReasonClosed, cause, jsonrpc.InFlight)
					if len(ids) != 2 {
						t.Errorf("posted %d times", len(ids))
					}
				default:
					wantResult(t, m, 5, `{"again":1}`)
					if first, second := <-ids, <-ids; first != "5" || second == "5" {
						t.Errorf("posted with the ids %s and %s", first, second)
					}
				}
				c.request(6, "ping", params(""))
				wantResult(t, c.recv(), 6, `{}`)
			})
		}
	}
}

// TestModernUnreachable gives each request its own error, and recovers.
func TestModernUnreachable(t *testing.T) {
	f := newFake(t)
	f.Close()
	s, l := server(t, f.URL)
	c := dialModern(t, s)
	for id, method := range []string{"tools/call", "tools/list", "subscriptions/listen"} {
		c.request(int64(id), method, params(`"name":"t"`))
		wantError(t, c.recv(), int64(id), jsonrpc.ReasonClosed, "connection refused", jsonrpc.NotSent)
	}
	c.close()
	if l.sum("requests to the upstream failed") != 1 {
		t.Errorf("the log is %s", l)
	}
}

// TestD32_ModernCancel closes the connection of a cancelled request at once,
// whatever it waits for. Nothing is answered, and nothing is posted.
func TestD32_ModernCancel(t *testing.T) {
	tests := []struct {
		name string
		do   func(w http.ResponseWriter)
	}{
		{"before the header", func(http.ResponseWriter) {}},
		{"in a stream", func(w http.ResponseWriter) { stream(w, ": x\n\n") }},
		{"in a body", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"jsonrpc":`)
			http.NewResponseController(w).Flush()
		}},
	}
	for _, tt := range tests {
		for _, method := range []string{"tools/call", "resources/read", "subscriptions/listen"} {
			t.Run(tt.name+" "+method, func(t *testing.T) {
				f := newFake(t)
				gone := make(chan struct{}, 1)
				f.handle(method, func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
					tt.do(w)
					block(r)
					gone <- struct{}{}
				})
				c := connectModern(t, f)
				c.request(5, method, params(`"name":"t"`))
				f.await(method, 1)
				c.cancel(5)
				conntest.Await(t, "end of the request", gone)
				c.cancel(5)
				c.cancel(99)
				c.notify("notifications/cancelled", `{"requestId":null}`)
				c.request(6, "x", params(""))
				wantResult(t, c.recv(), 6, `{}`)
				c.close()
				if got := strings.Join(f.all(), " "); got != "tools/list "+method+" x" {
					t.Errorf("posted %s", got)
				}
			})
		}
	}
}

// TestModernClose aborts what is in flight, which cancels it, but lets what ends a
// task out.
func TestModernClose(t *testing.T) {
	f := newFake(t)
	gone := make(chan struct{}, 2)
	wait := func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
		stream(w, ": x\n\n")
		block(r)
		gone <- struct{}{}
	}
	f.handle("tools/call", wait)
	f.handle("subscriptions/listen", wait)
	release, done := make(chan struct{}), make(chan struct{}, 1)
	f.handle("tasks/cancel", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		<-release
		reply(w, m, `{}`)
		done <- struct{}{}
	})
	c := connectModern(t, f)
	c.request(1, "tools/call", params(`"name":"t"`))
	c.request(2, "subscriptions/listen", params(""))
	c.request(3, "tasks/cancel", params(`"taskId":"x"`))
	f.await("tools/call", 1)
	f.await("subscriptions/listen", 1)
	f.await("tasks/cancel", 1)
	conntest.During(t, func() {
		conntest.Await(t, "end of a request", gone)
		conntest.Await(t, "end of a request", gone)
		close(release)
	}, c.close)
	conntest.Await(t, "end of the task", done)
	if m, err := c.Recv(); err != jsonrpc.ErrClosed {
		t.Errorf("Recv: %v, %v", m, err)
	}
	if err := c.Send(jsonrpc.NewRequest(jsonrpc.IntID(9), "x", nil)); err == nil {
		t.Error("Send after Close succeeds")
	}
}

// TestModernCloseForce does not wait for a server that does not answer.
func TestModernCloseForce(t *testing.T) {
	f := newFake(t)
	f.handle("tasks/cancel", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
	f.handle("notifications/x", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
	s, _ := modernServer(t, f)
	s.StopGrace = 50 * time.Millisecond
	c := dialModern(t, s)
	c.request(3, "tasks/cancel", params(`"taskId":"x"`))
	c.notify("notifications/x", "{}")
	f.await("tasks/cancel", 1)
	f.await("notifications/x", 1)
	began := time.Now()
	c.close()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// TestModernHostStops ends the stream with the cause.
func TestModernHostStops(t *testing.T) {
	f := newFake(t)
	f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
	s, _ := modernServer(t, f)
	ctx, cancel := context.WithCancel(context.Background())
	conn, err := s.DialModern(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{conn, t}
	defer c.close()
	c.request(1, "tools/call", params(`"name":"t"`))
	f.await("tools/call", 1)
	cancel()
	if end := c.end(); end.Cause != "host stopped" || !end.Delivered {
		t.Errorf("the end is %+v", end)
	}
}

// TestModernListen sets what its frames are about, also where the server writes
// the id in another way, and drops those of another one.
func TestModernListen(t *testing.T) {
	f := newFake(t)
	frame := func(method, meta string) string {
		return fmt.Sprintf(`data: {"jsonrpc":"2.0","method":%q,"params":{%s"uri":"u"}}`+"\n\n", "notifications/"+method, meta)
	}
	id := func(text string) string {
		return `"_meta":{"io.modelcontextprotocol/subscriptionId":` + text + `,"x":1.0},`
	}
	release := make(chan struct{})
	f.handle("subscriptions/listen", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		stream(w, frame("subscriptions/acknowledged", id("7"))+frame("a", id("8"))+frame("b", id("{}"))+
			frame("resources/updated", "")+frame("tools/list_changed", id(`"7"`)))
		<-release
		stream(w, sseResult(m, `{"resultType":"complete"}`))
	})
	c := connectModern(t, f)
	c.request(7, "subscriptions/listen", params(`"notifications":{}`))
	for _, want := range []string{
		`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7,"x":1.0},"uri":"u"}}`,
		`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"u","_meta":{"io.modelcontextprotocol/subscriptionId":7}}}`,
		`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7,"x":1.0},"uri":"u"}}`,
	} {
		if m := c.recv(); string(m.Append(nil)) != want || m.Related != jsonrpc.IntID(7) {
			t.Errorf("got %s related to %s\nwant %s", m.Append(nil), m.Related, want)
		}
	}
	close(release)
	wantResult(t, c.recv(), 7, `{"resultType":"complete"}`)
}

// TestModernListenEnds is an error for whoever listens, and nothing for the log.
func TestModernListenEnds(t *testing.T) {
	f := newFake(t)
	f.handle("subscriptions/listen", func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) { stream(w, ": x\n\n") })
	s, l := modernServer(t, f)
	c := dialModern(t, s)
	c.request(7, "subscriptions/listen", params(""))
	wantError(t, c.recv(), 7, jsonrpc.ReasonClosed, "stream ended", jsonrpc.InFlight)
	f.await("subscriptions/listen", 1)
	c.close()
	if l.String() != "" {
		t.Errorf("the log is %s", l)
	}
}

// TestModernConcurrent keeps calls to MaxConcurrent, and listens out of that. What
// waits can be cancelled, and then is never posted.
func TestModernConcurrent(t *testing.T) {
	f := newFake(t)
	var now, most atomic.Int32
	release := make(chan struct{})
	f.handle("subscriptions/listen", func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
		stream(w, ": x\n\n")
		block(r)
	})
	f.handle("tools/call", func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
		most.Store(max(most.Load(), now.Add(1)))
		<-release
		now.Add(-1)
		reply(w, m, `{}`)
	})
	s, _ := modernServer(t, f)
	s.MaxConcurrent = 2
	a, b := dialModern(t, s), dialModern(t, s)
	for id := range int64(5) {
		a.request(100+id, "subscriptions/listen", params(""))
	}
	f.await("subscriptions/listen", 5)
	for id := range int64(4) {
		a.request(id, "tools/call", params(`"name":"t"`))
		b.request(id, "tools/call", params(`"name":"t"`))
	}
	f.await("tools/call", 2)
	for id := range int64(4) {
		b.cancel(id)
	}
	close(release)
	for range 4 {
		if m := a.recv(); m.Result == nil {
			t.Errorf("got %s", m.Append(nil))
		}
	}
	if most.Load() > 2 {
		t.Errorf("%d at once", most.Load())
	}
}

// TestModernTooMany answers what is beyond the bound, and a duplicate.
func TestModernTooMany(t *testing.T) {
	f := newFake(t)
	f.handle("tools/call", func(_ http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) { block(r) })
	s, _ := modernServer(t, f)
	s.MaxConcurrent = 1
	c := dialModern(t, s)
	for id := range int64(maxOpen) {
		c.request(id, "tools/call", params(`"name":"t"`))
	}
	c.request(0, "x", params(""))
	if m := c.recv(); !m.ID.IsZero() || !strings.Contains(string(m.Error), "Duplicate") {
		t.Errorf("got %s", m.Append(nil))
	}
	c.request(maxOpen, "x", params(""))
	wantError(t, c.recv(), maxOpen, jsonrpc.ReasonOverloaded, "", jsonrpc.NotSent)
}

// TestModernOther is what the host never sends: notifications are posted, responses
// are not. A request that no header can repeat is refused here.
func TestModernOther(t *testing.T) {
	f := newFake(t)
	seen := make(chan string, 1)
	f.handle("notifications/x", func(w http.ResponseWriter, r *http.Request, _ *jsonrpc.Message) {
		seen <- r.Header.Get("Mcp-Method")
		w.WriteHeader(http.StatusBadRequest)
	})
	c := connectModern(t, f)
	c.notify("notifications/x", "{}")
	if got := conntest.Await(t, "notification", seen); got != "notifications/x" {
		t.Errorf("Mcp-Method is %s", got)
	}
	c.send(jsonrpc.NewResult(jsonrpc.IntID(4), raw("{}")))
	for _, tt := range []struct {
		method, params, wants string
	}{
		{"a\r\nb: c", params(""), "-32601"},
		{"tools/call", params(`"name":"t","Name":"u"`), "-32602"},
		{"tools/call", `{"_meta":{},` + modernMeta + `}`, "-32602"},
		{"tools/call", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"a\nb"}}`, "-32022"},
	} {
		c.request(5, tt.method, tt.params)
		if m := c.recv(); m.ID != jsonrpc.IntID(5) || !strings.Contains(string(m.Error), tt.wants) {
			t.Errorf("%s: got %s", tt.method, m.Append(nil))
		}
	}
	c.request(6, "x", params(""))
	wantResult(t, c.recv(), 6, "{}")
	if got := strings.Join(f.all(), " "); got != "tools/list notifications/x x" {
		t.Errorf("posted %s", got)
	}
}

// TestModernVersion says in another version what a server refuses in the client's,
// and begins with that from then on.
func TestModernVersion(t *testing.T) {
	f := newFake(t)
	versions := make(chan string, 8)
	answer := `{"code":-32022,"message":"x","data":{"supported":["2025-11-25","2026-07-28"],"requested":"?"}}`
	f.handle("prompts/get", func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
		version := r.Header.Get("Mcp-Protocol-Version")
		versions <- version
		if !strings.Contains(string(m.Params), `"io.modelcontextprotocol/protocolVersion":"`+version+`","x":1.0`) {
			t.Errorf("header %s, params %s", version, m.Params)
		}
		if version == "2026-07-28" {
			reply(w, m, `{}`)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		w.Write((&jsonrpc.Message{ID: m.ID, Error: raw(answer)}).Append(nil))
	})
	c := connectModern(t, f)
	old := `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-09-09","x":1.0},"name":"p"}`
	for id := range int64(2) {
		c.request(id, "prompts/get", old)
		wantResult(t, c.recv(), id, `{}`)
	}
	for _, want := range []string{"2026-09-09", "2026-07-28", "2026-07-28"} {
		if got := <-versions; got != want {
			t.Errorf("posted in %s, want %s", got, want)
		}
	}
	answer = `{"code":-32022,"message":"x","data":{"supported":["2025-11-25","2026-08-08"],"requested":"?"}}`
	c.request(3, "prompts/get", strings.Replace(old, "2026-09-09", "2026-08-08", 1))
	if m := c.recv(); string(m.Error) != answer {
		t.Errorf("got %s", m.Append(nil))
	}
	if len(versions) != 1 {
		t.Errorf("posted %d times", len(versions))
	}
}

// TestModernDenied says so once, and reads the credentials anew.
func TestModernDenied(t *testing.T) {
	f := newFake(t)
	f.any = func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusForbidden)
		return true
	}
	s, l := server(t, f.URL)
	c := dialModern(t, s)
	for id := range int64(3) {
		c.request(id, "prompts/get", params(`"name":"x"`))
		wantError(t, c.recv(), id, jsonrpc.ReasonClosed, "HTTP 403", jsonrpc.InFlight)
	}
	c.close()
	if l.sum("WARN") != 1 || l.sum("refuses the credentials") != 1 {
		t.Errorf("the log is %s", l)
	}
}
