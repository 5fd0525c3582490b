package remote

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},"io.modelcontextprotocol/clientCapabilities":{},"vendor/x":1.50}`

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
	if f.on[mcp.MethodToolsList] == nil {
		f.on[mcp.MethodToolsList] = func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
			reply(w, m, `{"tools":[{"name":"t","inputSchema":{"type":"object"}}]}`)
		}
	}
	if f.on[mcp.MethodDiscover] == nil {
		f.on[mcp.MethodDiscover] = func(w http.ResponseWriter, _ *http.Request, m *jsonrpc.Message) {
			reply(w, m, `{"supportedVersions":["2026-07-28"]}`)
		}
	}
	return server(t, f.URL)
}

// connectModern begins a stream to f, which has been asked for its tools.
func connectModern(t *testing.T, f *fake) *client {
	t.Helper()
	s, _ := modernServer(t, f)
	c := dialModern(t, s)
	c.request(0, mcp.MethodToolsList, params(""))
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
			"Accept": "application/json, text/event-stream", "Accept-Encoding": "identity",
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
		stream(w, `data: {"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":5}}`+"\n\n")
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

// TestModernVersion passes on what a server says of a version, which is posted once.
func TestModernVersion(t *testing.T) {
	f := newFake(t)
	answer := `{"code":-32022,"message":"x","data":{"supported":["2025-11-25","2026-07-28"],"requested":"?"}}`
	status := http.StatusBadRequest
	f.handle("prompts/get", func(w http.ResponseWriter, r *http.Request, m *jsonrpc.Message) {
		version := r.Header.Get("Mcp-Protocol-Version")
		if !strings.Contains(string(m.Params), `"io.modelcontextprotocol/protocolVersion":"`+version+`","x":1.0`) {
			t.Errorf("header %s, params %s", version, m.Params)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write((&jsonrpc.Message{ID: m.ID, Error: raw(answer)}).Append(nil))
	})
	c := connectModern(t, f)
	for id, version := range []string{"2026-09-09", "2026-07-28"} {
		c.request(int64(id), "prompts/get", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"`+version+`","x":1.0},"name":"p"}`)
		if m := c.recv(); string(m.Error) != answer {
			t.Errorf("got %s", m.Append(nil))
		}
		status = http.StatusOK
	}
	if n := countOf(f.all(), "prompts/get"); n != 2 {
		t.Errorf("posted %d times", n)
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
	if l.sum("WARN") != 1 || l.sum("upstream refused the request") != 1 {
		t.Errorf("the log is %s", l)
	}
}
