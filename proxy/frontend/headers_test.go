package frontend

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
)

// TestHeaderChecks makes every mistake that a modern client can make, also two at once; then the
// first check decides.
func TestHeaderChecks(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) {
		h.Limits = jsonrpc.Limits{Message: 4 << 10}
		h.ServePrincipal = principal(unknown)
	})
	c := ts.at("/mcp")
	const (
		version = `"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
		caps    = `"io.modelcontextprotocol/clientCapabilities":{}`
	)
	ask := func(method, params string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":"a\/b","method":%q,"params":{%s}}`, method, params)
	}
	meta := func(members ...string) string { return `"_meta":{` + strings.Join(members, ",") + `}` }
	good := meta(version, caps)
	head := func(method string, more ...string) []string {
		return append([]string{"MCP-Protocol-Version", "2026-07-28", "Mcp-Method", method}, more...)
	}
	const id = `"a\/b"`
	for _, tt := range []struct {
		name, body string
		set        []string
		status     int
		code       int
		id         string // of the error, "" for none
	}{
		{"not JSON", `{"jsonrpc":"2.0","id":7,`, head("x"), 400, -32700, "7"},
		{"not a request", `{"jsonrpc":"1.0","id":7,"method":"x"}`, head("x"), 400, -32600, "7"},
		{"null id", `{"jsonrpc":"2.0","id":null,"method":"x"}`, head("x"), 400, -32600, ""},
		{"too large", ask("x", `"x":"`+strings.Repeat("x", 4<<10)+`",`+good), head("x"), 413, -32600, ""},
		{"gzip", ask("x", good), head("x", "Content-Encoding", "gzip"), 415, -32600, ""},
		{"accepts JSON only", ask("x", good), head("x", "Accept", "application/json"), 406, -32600, ""},
		{"batch", `[` + ask("x", good) + `]`, head("x"), 400, -32600, ""},
		{"batch by body", `[` + ask("x", "") + `,` + ask("x", good) + `]`, nil, 400, -32600, ""},
		{"response", `{"jsonrpc":"2.0","id":1,"result":{}}`, head("x"), 400, -32600, ""},
		{"no params", `{"jsonrpc":"2.0","id":1,"method":"x"}`, head("x"), 400, -32602, "1"},
		{"no _meta", ask("tools/list", ""), head("tools/list"), 400, -32602, id},
		{"no _meta, later version", ask("x", ""), []string{"MCP-Protocol-Version", "2099-01-01"}, 400, -32602, id},
		{"no version", ask("x", meta(caps)), head("x"), 400, -32602, id},
		{"version is no string", ask("x", meta(`"io.modelcontextprotocol/protocolVersion":1`, caps)), head("x"), 400, -32602, id},
		{"no capabilities", ask("x", meta(version)), head("x"), 400, -32602, id},
		{"no capabilities nor headers", ask("x", meta(version)), nil, 400, -32602, id},
		{"no capabilities, bad version", ask("x", meta(`"io.modelcontextprotocol/protocolVersion":"2099-01-01"`)), nil, 400, -32602, id},
		{"bad log level", ask("x", meta(version, caps, `"io.modelcontextprotocol/logLevel":"loud"`)), head("x"), 400, -32602, id},
		{"two _meta", ask("x", good+","+good), head("x"), 400, -32602, id},
		{"two versions", ask("x", meta(version, version, caps)), head("x"), 400, -32602, id},
		{"discover without anything", ask("server/discover", ""), nil, 400, -32602, id},
		{"listen without anything", ask("subscriptions/listen", ""), nil, 400, -32602, id},
		{"no version header", ask("x", good), []string{"Mcp-Method", "x"}, 400, -32020, id},
		{"legacy version header", ask("x", good), []string{"Mcp-Method", "x", "MCP-Protocol-Version", "2025-11-25"}, 400, -32020, id},
		{"two version headers", ask("x", good), head("x", "+Mcp-Protocol-Version", "2026-07-28"), 400, -32020, id},
		{"two version headers, the first legacy", ask("x", good), []string{"Mcp-Method", "x", "MCP-Protocol-Version", "2025-11-25", "+Mcp-Protocol-Version", "2026-07-28"}, 400, -32020, id},
		{"two version headers, legacy body", ask("x", ""), head("x", "+Mcp-Protocol-Version", "2025-11-25"), 400, -32020, id},
		{"two version headers and a session", ask("x", good), head("x", "Mcp-Session-Id", "nobody", "+Mcp-Protocol-Version", "2025-11-25"), 400, -32020, id},
		{"other version header, bogus body", ask("x", meta(`"io.modelcontextprotocol/protocolVersion":"bogus"`, caps)), head("x"), 400, -32020, id},
		{"no method header", ask("x", good), []string{"MCP-Protocol-Version", "2026-07-28"}, 400, -32020, id},
		{"other method header", ask("x", good), head("y"), 400, -32020, id},
		{"method header in another case", ask("tools/list", good), head("TOOLS/LIST"), 400, -32020, id},
		{"two method headers", ask("x", good), head("x", "+Mcp-Method", "x"), 400, -32020, id},
		{"no name header", ask("tools/call", `"name":"a",`+good), head("tools/call"), 400, -32020, id},
		{"other name header", ask("tools/call", `"name":"a",`+good), head("tools/call", "Mcp-Name", "b"), 400, -32020, id},
		{"name header in another case", ask("prompts/get", `"name":"a",`+good), head("prompts/get", "Mcp-Name", "A"), 400, -32020, id},
		{"two name headers", ask("prompts/get", `"name":"a",`+good), head("prompts/get", "Mcp-Name", "a", "+Mcp-Name", "a"), 400, -32020, id},
		{"name header without name", ask("tools/call", good), head("tools/call", "Mcp-Name", "a"), 400, -32020, id},
		{"neither name", ask("tools/call", good), head("tools/call"), 400, -32602, id},
		{"neither name nor method header", ask("tools/call", good), []string{"MCP-Protocol-Version", "2026-07-28"}, 400, -32020, id},
		{"neither name, other version header", ask("tools/call", good), []string{"MCP-Protocol-Version", "2099-01-01", "Mcp-Method", "tools/call"}, 400, -32020, id},
		{"a number as name", ask("tools/call", `"name":5,`+good), head("tools/call"), 400, -32602, id},
		{"a number as name, and in the header", ask("tools/call", `"name":5,`+good), head("tools/call", "Mcp-Name", "5"), 400, -32020, id},
		{"no uri", ask("resources/read", good), head("resources/read"), 400, -32602, id},
		{"two names", ask("tools/call", `"name":"a","name":"a",`+good), head("tools/call", "Mcp-Name", "a"), 400, -32602, id},
		{"bad base64", ask("resources/read", `"uri":"a",`+good), head("resources/read", "Mcp-Name", "=?base64?YQ?="), 400, -32020, id},
		{"no uri header", ask("resources/read", `"uri":"a",`+good), head("resources/read"), 400, -32020, id},
		{"no task header", ask("tasks/get", `"taskId":"a",`+good), head("tasks/get"), 400, -32020, id},
		{"bogus version", ask("x", meta(`"io.modelcontextprotocol/protocolVersion":"bogus"`, caps)), head("x", "MCP-Protocol-Version", "bogus"), 400, -32022, id},
		{"later version", ask("x", meta(`"io.modelcontextprotocol/protocolVersion":"2099-01-01"`, caps)), head("x", "MCP-Protocol-Version", "2099-01-01"), 400, -32022, id},
		{"legacy version", ask("x", meta(`"io.modelcontextprotocol/protocolVersion":"2025-11-25"`, caps)), head("x", "MCP-Protocol-Version", "2025-11-25"), 400, -32022, id},
		{"later version, other method header", ask("x", meta(`"io.modelcontextprotocol/protocolVersion":"2099-01-01"`, caps)), head("y", "MCP-Protocol-Version", "2099-01-01"), 400, -32020, id},
		{"unknown method", ask("x", good), head("x"), 404, -32601, id},
		{"initialize", ask("initialize", good), head("initialize"), 404, -32601, id},
		{"initialize without _meta", ask("initialize", ""), head("initialize"), 400, -32602, id},
		{"escaped slashes", ask("x", strings.ReplaceAll(good, "/", `\/`)), head("x"), 404, -32601, id},
		{"escaped letters", ask("x", strings.ReplaceAll(good, "protocolV", `protocol\u0056`)), head("x"), 404, -32601, id},
		{"a session is ignored", ask("x", good), head("x", "Mcp-Session-Id", "nobody"), 404, -32601, id},
		{"a session that is gone, no version header", ask("x", good), []string{"Mcp-Session-Id", "nobody", "Mcp-Method", "x"}, 400, -32020, id},
		{"a session that is gone, legacy version header", ask("x", good), []string{"Mcp-Session-Id", "nobody", "Mcp-Method", "x", "MCP-Protocol-Version", "2025-11-25"}, 400, -32020, id},
		{"a session that is gone, discover", ask("server/discover", ""), []string{"Mcp-Session-Id", "nobody"}, 400, -32602, id},
		{"a session that is gone, legacy", ask("x", ""), []string{"Mcp-Session-Id", "nobody"}, 404, -32600, ""},
		{"a session that is gone, too large", ask("x", `"x":"`+strings.Repeat("x", 4<<10)+`"`), []string{"Mcp-Session-Id", "nobody"}, 413, -32600, ""},
		{"name in base64", ask("resources/read", `"uri":"é",`+good), head("resources/read", "Mcp-Name", "=?base64?w6k=?="), 404, -32601, id},
		{"removed method of the extension", ask("tasks/list", good), head("tasks/list"), 404, -32601, id},
		{"white space", ask("prompts/get", `"name":"a b",`+good), []string{"MCP-Protocol-Version", " 2026-07-28\t", "Mcp-Method", " prompts/get", "Mcp-Name", "\ta b "}, 404, -32601, id},
		{"legacy without session", ask("x", ""), nil, 400, -32600, ""},
		{"legacy unknown version", ask("x", ""), []string{"MCP-Protocol-Version", "bogus"}, 400, -32600, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := c.request(http.MethodPost, tt.body)
			for i := 0; i < len(tt.set); i += 2 {
				if name, more := strings.CutPrefix(tt.set[i], "+"); more {
					req.Header.Add(name, tt.set[i+1])
				} else {
					req.Header.Set(name, tt.set[i+1])
				}
			}
			resp := c.do(req)
			body := wantStatus(t, resp, tt.status)
			var got struct {
				ID    json.RawMessage
				Error struct {
					Code int
					Data json.RawMessage
				}
			}
			if err := json.Unmarshal([]byte(body), &got); err != nil || got.Error.Code != tt.code || string(got.ID) != tt.id {
				t.Errorf("body %s (%v), want error %d for id %s", body, err, tt.code, tt.id)
			}
			if tt.code == -32022 && !strings.Contains(string(got.Error.Data), `"supported":["2026-07-28",`) {
				t.Errorf("data %s", got.Error.Data)
			}
			if resp.Header.Get("Mcp-Session-Id") != "" {
				t.Error("a session was begun")
			}
		})
	}
}

// TestModernNotifications: those without a version are ignored, cancellations always are, and one
// with a version is passed on.
func TestModernNotifications(t *testing.T) {
	ts := newPrincipalServer(t, nil)
	c := ts.at("/mcp")
	const cancel = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`
	wantStatus(t, c.post(cancel, "MCP-Protocol-Version", "2026-07-28"), 202)
	wantStatus(t, c.post(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{`+metaText+`}}`), 202)
	wantStatus(t, c.post(`{"jsonrpc":"2.0","method":"notifications/x"}`, "MCP-Protocol-Version", "2026-07-28"), 202)
	wantRefusal(t, c.post(cancel, "MCP-Protocol-Version", "2099-01-01"), 400, -32022)
	wantRefusal(t, c.post(cancel, "MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "x"), 400, -32020)
	note := `{"jsonrpc":"2.0","method":"notifications/x","params":{"y":1.0,` + metaText + `}}`
	wantRefusal(t, c.post(note, "MCP-Protocol-Version", "2025-11-25"), 400, -32020)
	wantStatus(t, c.post(note), 202)
	wantText(t, conntest.Recv(t, <-ts.conns), note)
}

// TestModernInSession: a modern message stays modern even with a session header.
func TestModernInSession(t *testing.T) {
	ts := newTestServer(t, nil)
	c := ts.connect("2025-11-25")
	wantStatus(t, c.do(c.modern("5", "x", "")), http.StatusNotFound) // -32601
	wantStatus(t, c.post(modernText("5", "x", "")), http.StatusBadRequest)
	wantText(t, onlyMessage(t, c.post(ping)), `{"jsonrpc":"2.0","id":1,"result":{}}`)
}

// TestModernMethods: there is only POST, except for clients with a session.
func TestModernMethods(t *testing.T) {
	ts := newTestServer(t, nil)
	c := ts.at("/mcp")
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		resp := c.do(c.request(method, "", "MCP-Protocol-Version", "2026-07-28"))
		wantRefusal(t, resp, http.StatusMethodNotAllowed, -32600)
		if got := resp.Header.Get("Allow"); got != "POST, OPTIONS" {
			t.Errorf("Allow: %q", got)
		}
		wantRefusal(t, c.do(c.request(method, "")), http.StatusBadRequest, -32600)
	}
	for _, method := range []string{http.MethodPut, http.MethodPatch} {
		for _, path := range []string{"/mcp", "/mcp/files"} {
			c.url = ts.url + path
			resp := c.do(c.request(method, "{}", "MCP-Protocol-Version", "2026-07-28"))
			wantRefusal(t, resp, http.StatusMethodNotAllowed, -32600)
			if got := resp.Header.Get("Allow"); got != "POST, OPTIONS" {
				t.Errorf("%s %s: Allow: %q", method, path, got)
			}
		}
	}
}

// TestModernUnserved: a program that serves only sessions refuses modern clients.
func TestModernUnserved(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) { h.ServePrincipal = nil })
	body := wantStatus(t, ts.at("/mcp").do(ts.at("/mcp").modern("5", "x", "")), http.StatusBadRequest)
	if !strings.Contains(body, `"code":-32022`) || !strings.Contains(body, `"supported":["2025-11-25"`) {
		t.Errorf("body %s", body)
	}
}
