package frontend

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A modernFleet is a fleet whose modern clients the test serves.
type modernFleet struct {
	fleet
	conns map[string]<-chan jsonrpc.Conn
	open  map[string]jsonrpc.Conn
}

func newModernFleet(t *testing.T, names string) *modernFleet {
	t.Helper()
	f := &modernFleet{conns: map[string]<-chan jsonrpc.Conn{}, open: map[string]jsonrpc.Conn{}}
	f.fleet = newFleet(t, names, func(name string, h *HTTP) { f.conns[name] = manualPrincipal(h) }, nil)
	return f
}

// serve answers the next message at a replica, and returns it. answer is "result":… or "error":…; what
// is told comes before that.
func (f *modernFleet) serve(t *testing.T, at, answer string, told ...*jsonrpc.Message) *jsonrpc.Message {
	t.Helper()
	if f.open[at] == nil {
		f.open[at] = conntest.Await(t, "connection", f.conns[at])
	}
	conn := f.open[at]
	m := conntest.Recv(t, conn)
	for _, n := range told {
		n.Related = m.ID
		conn.Send(n)
	}
	if answer != "" {
		conn.Send(decode(t, `{"jsonrpc":"2.0","id":`+m.ID.String()+`,`+answer+`}`))
	}
	return m
}

// ask sends a request to one replica, which is served at another, and returns the client's answer and
// what the session got.
func (f *modernFleet) ask(t *testing.T, through, at, method, params, answer string) (got, sent *jsonrpc.Message) {
	t.Helper()
	c := f.fleet[through].at("/mcp")
	coming := c.send(c.modern("1", method, params))
	sent = f.serve(t, at, answer)
	return onlyMessage(t, conntest.Await(t, "response", coming)), sent
}

// member returns a member of the result of m, as JSON.
func member(t *testing.T, m *jsonrpc.Message, key string) string {
	t.Helper()
	raw, err := jsonrpc.Member(m.Result, key)
	if err != nil || raw == nil {
		t.Fatalf("%s has no %s", m.Append(nil), key)
	}
	return string(raw)
}

const (
	asked     = `"result":{"resultType":"input_required","inputRequests":{"k":{"method":"elicitation/create"}},"requestState":`
	answers   = `"name":"ask","inputResponses":{"k":{"action":"accept"}}`
	completed = `"result":{"resultType":"complete","content":[]}`
	aTask     = `"result":{"resultType":"task","taskId":"t1","status":"working","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t1"}}}`
)

// TestSuspendedAnywhere: a suspended call continues at its replica, wherever the client returns. Its
// server gets its own state, byte for byte, and the next state leads there, too.
func TestSuspendedAnywhere(t *testing.T) {
	f := newModernFleet(t, "a b c")
	for _, state := range []string{`"s\u00e9 \/\"=="`, `""`, `"mcp-proxy:x:y"`, `"a:b"`} {
		got, _ := f.ask(t, "a", "a", "tools/call", `"name":"ask"`, asked+state+`}`)
		given := member(t, got, "requestState")
		if !strings.HasPrefix(given, `"mcp-proxy:a.`) || !strings.HasSuffix(given, ":"+state[1:]) {
			t.Fatalf("requestState %s, want a name for %s", given, state)
		}
		hops := f.fleet["a"].hops.Load()
		for _, through := range []string{"b", "a", "c"} {
			got, sent := f.ask(t, through, "a", "tools/call", answers+`, "requestState" : `+given, asked+state+`}`)
			wantText(t, jsonrpc.NewRequest(jsonrpc.IntID(0), sent.Method, sent.Params),
				`{"jsonrpc":"2.0","id":0,"method":"tools/call","params":{`+answers+`, "requestState" : `+state+`,`+metaText+`}}`)
			if sent.Orphan {
				t.Error("the state counts as that of another replica")
			}
			given = member(t, got, "requestState")
		}
		if n := f.fleet["a"].hops.Load() - hops; n != 2 {
			t.Errorf("%d requests were passed on, want 2", n)
		}
		escaped := strings.Replace(given, "mcp-proxy", `mcp\u002dproxy`, 1)
		_, sent := f.ask(t, "b", "a", "tools/call", answers+`,"requestState":`+escaped, completed)
		if own, _ := mcp.Read(sent).Text(mcp.RequestState); string(jsonrpc.Quote(own)) != string(jsonrpc.Quote(unquoted(state))) {
			t.Errorf("an escaped name became %q", own)
		}
	}
	for _, name := range []string{"b", "c"} {
		if open, _ := f.fleet[name].connections(); open != 0 || f.fleet[name].hops.Load() != 0 {
			t.Errorf("%s has %d connections", name, open)
		}
	}
}

func unquoted(text string) (s string) {
	s, _ = jsonrpc.Unquote(json.RawMessage(text))
	return s
}

// TestOnlyNames: what is neither the state of a question nor the id of a task passes unchanged.
func TestOnlyNames(t *testing.T) {
	f := newModernFleet(t, "a b")
	for _, result := range []string{
		`{"resultType":"complete","requestState":"s","taskId":"t"}`,
		`{"resultType":"input_required","requestState":7}`,
		`{"resultType":"complete","content":[{"type":"text","text":"\u0041 requestState taskId"}],"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t"}}}`,
		`{"resultType":"input_required","requestState":"s","requestState":"s"}`,
	} {
		got, sent := f.ask(t, "a", "a", "tools/call", `"name":"mcp-proxy:b.0.mac:x","requestState":"mcp-proxy:forged:x"`, `"result":`+result)
		wantText(t, got, `{"jsonrpc":"2.0","id":1,"result":`+result+`}`)
		if want := `"name":"mcp-proxy:b.0.mac:x","requestState":"mcp-proxy:forged:x",`; !strings.Contains(string(sent.Params), want) {
			t.Errorf("params %s, want %s", sent.Params, want)
		}
	}
	got, _ := f.ask(t, "a", "a", "tools/call", `"name":"x"`, `"error":{"code":1,"message":"m","data":{"resultType":"task","taskId":"t1","requestState":"s"}}`)
	wantError(t, got, 1, `{"code":1,"message":"m","data":{"resultType":"task","taskId":"t1","requestState":"s"}}`)
	long := strings.Repeat("t", mcp.MaxRouted-10)
	got, _ = f.ask(t, "a", "a", "tools/call", `"name":"x"`, `"result":{"resultType":"task","taskId":"`+long+`"}`)
	if given := member(t, got, "taskId"); given != `"`+long+`"` {
		t.Error("a name is too long to be used")
	}
}

// TestTasksAnywhere: a task is known by one name at each replica, in requests, answers and
// notifications, and is served where it began.
func TestTasksAnywhere(t *testing.T) {
	f := newModernFleet(t, "a b c")
	got, _ := f.ask(t, "a", "a", "tools/call", `"name":"x"`, aTask)
	given := member(t, got, "taskId")
	if !strings.HasPrefix(given, `"mcp-proxy:a.`) || !strings.HasSuffix(given, `:t1"`) || strings.Count(string(got.Result), given) != 2 {
		t.Fatalf("the client got %s", got.Result)
	}
	for i, through := range []string{"b", "c", "a"} {
		method := []string{"tasks/get", "tasks/update", "tasks/cancel"}[i]
		got, sent := f.ask(t, through, "a", method, `"taskId":`+given,
			`"result":{"resultType":"complete","taskId":"t1","status":"working","_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t1"},"x":"t1"}}`)
		wantText(t, got, `{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","taskId":`+given+`,"status":"working","_meta":{"io.modelcontextprotocol/related-task":{"taskId":`+given+`},"x":"t1"}}}`)
		if key, _ := mcp.KeyOf(sent); key != "t1" {
			t.Errorf("%s: the server got %q", method, key)
		}
	}
	related := `{"io.modelcontextprotocol/related-task":{"taskId":` + given + `},` + metaText[len(`"_meta":{`):]
	got, sent := f.ask(t, "c", "a", "tasks/more", `"taskId":`+given, `"result":{"resultType":"complete","taskId":"t1"}`)
	if member(t, got, "taskId") != given || !strings.Contains(string(sent.Params), `"taskId":"t1"`) {
		t.Errorf("an unknown method: %s, %s", got.Result, sent.Params)
	}
	c := f.fleet["b"].at("/mcp")
	coming := c.send(c.request(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":`+related+`}}`,
		"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "x"))
	sent = f.serve(t, "a", completed, jsonrpc.NewNotification("notifications/progress", json.RawMessage(`{"progressToken":1,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":"t1"}}}`)))
	if id, _ := mcp.Read(sent).Text(mcp.RelatedTaskID); id != "t1" {
		t.Errorf("the related task is %q", id)
	}
	stream := newEvents(t, conntest.Await(t, "response", coming))
	wantText(t, stream.one().message(t), `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"_meta":{"io.modelcontextprotocol/related-task":{"taskId":`+given+`}}}}`)
}

// TestListenForTasks: a listen is served where its first task is. Those of other replicas are left out.
func TestListenForTasks(t *testing.T) {
	f := newModernFleet(t, "a b c")
	name := func(at string) string {
		got, _ := f.ask(t, at, at, "tools/call", `"name":"x"`, aTask)
		return member(t, got, "taskId")
	}
	a, b := name("a"), name("b")
	forged, gone := `"mcp-proxy:z.0.mac:t1"`, `"mcp-proxy:c.0.mac:t1"`
	for _, r := range f.fleet {
		r.sees("c", Gone)
	}
	for _, through := range []string{"c", "b", "a"} {
		c := f.fleet[through].at("/mcp")
		coming := c.send(c.modern("7", "subscriptions/listen", `"notifications":{"x":1,"taskIds":[`+forged+`,`+gone+`,`+a+`,"old",`+b+`],"toolsListChanged":true}`))
		sent := f.serve(t, "a", "")
		if want := `"notifications":{"x":1,"taskIds":[` + forged + `,"t1","old"],"toolsListChanged":true}`; !strings.Contains(string(sent.Params), want) || sent.Orphan {
			t.Errorf("the session got %s, want %s", sent.Params, want)
		}
		conn := f.open["a"]
		for _, n := range []*jsonrpc.Message{
			jsonrpc.NewNotification(mcp.MethodAcknowledged, json.RawMessage(`{"notifications":{"taskIds":["old","t1"]}}`)),
			jsonrpc.NewNotification(mcp.MethodTask, json.RawMessage(`{"taskId":"t1","status":"working"}`)),
			jsonrpc.NewNotification(mcp.MethodToolsChanged, nil),
		} {
			n.Related = sent.ID
			conn.Send(n)
		}
		stream := newEvents(t, conntest.Await(t, "response", coming))
		for _, want := range []string{`{"notifications":{"taskIds":["old",` + a + `]}`, `{"taskId":` + a + `,"status":"working"`, `{"_meta"`} {
			if m := stream.one().message(t); !strings.HasPrefix(string(m.Params), want) {
				t.Errorf("the client got %s, want %s", m.Params, want)
			}
		}
		stream.close()
		wantCancel(t, conn, sent)
	}
}

// TestNamedPlaces: what a replica has that cannot be reached is refused for now. If nobody has it, the
// request is served where it arrives, with what the other replica called it, and is marked.
func TestNamedPlaces(t *testing.T) {
	f := newModernFleet(t, "a b")
	c := f.fleet["b"].at("/mcp")
	state, task := answers+`,"requestState":"mcp-proxy:a.0.mac:s"`, `"taskId":"mcp-proxy:a.0.mac:t1"`
	f.fleet["b"].sees("a", Away)
	for method, params := range map[string]string{"tools/call": state, "tasks/get": task} {
		resp := c.do(c.modern("1", method, params))
		wantRefusal(t, resp, http.StatusServiceUnavailable, -32603)
		if resp.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	f.fleet["b"].sees("a", Gone)
	_, sent := f.ask(t, "b", "b", "tools/call", state, completed)
	if own, _ := mcp.Read(sent).Text(mcp.RequestState); own != "s" || !sent.Orphan {
		t.Errorf("state %q, orphan %v", own, sent.Orphan)
	}
	got, sent := f.ask(t, "b", "b", "tasks/get", task, `"result":{"resultType":"complete","taskId":"t1"}`)
	if own, _ := mcp.KeyOf(sent); own != "t1" || !sent.Orphan || member(t, got, "taskId") != `"mcp-proxy:a.0.mac:t1"` {
		t.Errorf("task %q, orphan %v, the client got %s", own, sent.Orphan, got.Result)
	}
	_, sent = f.ask(t, "b", "b", "tools/call", `"name":"x"`, completed)
	if sent.Orphan {
		t.Error("a call without a state counts as that of another replica")
	}
	if n := f.fleet["a"].hops.Load(); n != 0 {
		t.Errorf("%d requests were passed on", n)
	}
}

// TestNamedWhileDraining: what a replica has that drains is asked of one that does not, wherever the
// request arrives.
func TestNamedWhileDraining(t *testing.T) {
	f := newModernFleet(t, "a b c")
	f.fleet["a"].ready = "c"
	f.fleet["a"].Drain()
	task := `"taskId":"mcp-proxy:a.0.mac:t1"`
	for i, through := range []string{"a", "b", "c"} {
		got, sent := f.ask(t, through, "c", "tasks/get", task, `"result":{"resultType":"complete","taskId":"t1"}`)
		if !sent.Orphan || member(t, got, "taskId") != `"mcp-proxy:a.0.mac:t1"` || f.fleet["c"].hops.Load() != int32(i+1) {
			t.Errorf("through %s: orphan %v, %d requests at c, the client got %s", through, sent.Orphan, f.fleet["c"].hops.Load(), got.Result)
		}
	}
	f.fleet["c"].ready = "a"
	f.fleet["c"].Drain()
	c := f.fleet["b"].at("/mcp")
	wantRefusal(t, c.do(c.modern("1", "tasks/get", task)), http.StatusServiceUnavailable, -32603)
	if n := f.fleet["a"].hops.Load() + f.fleet["c"].hops.Load() + f.fleet["b"].hops.Load(); n != 3+2+maxHops {
		t.Errorf("%d requests were passed on", n)
	}
}

// TestNamedOneHop: a request that was passed on is served, whatever its receiver thinks of the owner.
func TestNamedOneHop(t *testing.T) {
	f := newModernFleet(t, "a b c")
	f.fleet["b"].fleet = fleet{"a": f.fleet["c"], "b": f.fleet["b"]} // b takes c for the owner, and c takes a for it
	_, sent := f.ask(t, "b", "c", "tasks/get", `"taskId":"mcp-proxy:a.0.mac:t1"`, completed)
	if !sent.Orphan || f.fleet["a"].hops.Load() != 0 || f.fleet["c"].hops.Load() != 1 {
		t.Errorf("orphan %v, %d requests at a, %d at c", sent.Orphan, f.fleet["a"].hops.Load(), f.fleet["c"].hops.Load())
	}
}

// TestNamedUnchanged: the body is passed on as it came, and the error for a lost owner is that of the
// modern era.
func TestNamedUnchanged(t *testing.T) {
	bodies := make(chan string, 1)
	f := newFleet(t, "a b", func(_ string, h *HTTP) { h.ServePrincipal = principal(echo) }, func(name string, h http.Handler) http.Handler {
		if name != "a" {
			return h
		}
		return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			bodies <- string(body)
			panic(http.ErrAbortHandler)
		})
	})
	c := f["b"].at("/mcp")
	params := `"pad":"` + strings.Repeat("x", 2*largeBody) + `",` + answers + `, "requestState" :"mcp-proxy:a.0.mac:s"`
	text := " " + modernText("1", "tools/call", params) + "\n"
	req := c.request(http.MethodPost, text, "MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "ask")
	got := onlyMessage(t, c.do(req))
	if conntest.Await(t, "body", bodies) != text {
		t.Error("the body has changed")
	}
	data := jsonrpc.ReadErrorData(got.Error)
	if code, _ := jsonrpc.Member(got.Error, "code"); string(code) != "-32603" || data.Reason != jsonrpc.ReasonClosed || data.Phase != jsonrpc.InFlight {
		t.Errorf("the client got %s", got.Error)
	}
	f["a"].cut()
	wantRefusal(t, c.do(c.modern("1", "tasks/get", `"taskId":"mcp-proxy:a.0.mac:t1"`)), http.StatusServiceUnavailable, -32603)
}

// TestListenDoesNotDelayDrain: a listen that is passed on does not keep a proxy from ending.
func TestListenDoesNotDelayDrain(t *testing.T) {
	f := newModernFleet(t, "a b")
	c := f.fleet["b"].at("/mcp")
	coming := c.send(c.modern("7", "subscriptions/listen", `"notifications":{"taskIds":["mcp-proxy:a.0.mac:t1"]}`))
	sent := f.serve(t, "a", "")
	n := jsonrpc.NewNotification(mcp.MethodAcknowledged, json.RawMessage(`{"notifications":{}}`))
	n.Related = sent.ID
	f.open["a"].Send(n)
	stream := newEvents(t, conntest.Await(t, "response", coming))
	stream.one()
	f.fleet["b"].Linger(t.Context())
	f.fleet["b"].HTTP.Close()
	last := stream.one().message(t)
	if data := jsonrpc.ReadErrorData(last.Error); data.Cause != jsonrpc.CauseHostStopped {
		t.Errorf("the listen ended with %s", last.Append(nil))
	}
}

// TestNamesNeedReplicas: alone, a proxy changes no state and no task.
func TestNamesNeedReplicas(t *testing.T) {
	ts := newPrincipalServer(t, nil)
	f := &modernFleet{fleet: fleet{"a": {testServer: ts}}, conns: map[string]<-chan jsonrpc.Conn{"a": ts.conns}, open: map[string]jsonrpc.Conn{}}
	got, sent := f.ask(t, "a", "a", "tools/call", answers+`,"requestState":"mcp-proxy:a.0.mac:s"`, asked+`"s"}`)
	if own, _ := mcp.Read(sent).Text(mcp.RequestState); own != "mcp-proxy:a.0.mac:s" || member(t, got, "requestState") != `"s"` {
		t.Errorf("the server got %s, the client %s", sent.Params, got.Result)
	}
	got, _ = f.ask(t, "a", "a", "tools/call", `"name":"x"`, aTask)
	wantText(t, got, `{"jsonrpc":"2.0","id":1,`+aTask+`}`)
}
