package frontend

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/jsonrpc/conntest"
)

// mirrored is a tool whose parameters go into headers.
const mirrored = `{"name":%q,"inputSchema":{"type":"object","properties":{
	"region":{"type":"string","x-mcp-header":"Region"},
	"deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}}}}}`

// tooled serves trunks with tools on two pages, and returns the params of calls.
func tooled(c jsonrpc.Conn) error {
	for {
		m, err := c.Recv()
		if err != nil {
			return err
		}
		switch {
		case m.Method == "tools/list" && strings.Contains(string(m.Params), `"cursor":"two"`):
			c.Send(jsonrpc.NewResult(m.ID, json.RawMessage(fmt.Sprintf(`{"tools":[`+mirrored+`]}`, "second"))))
		case m.Method == "tools/list":
			c.Send(jsonrpc.NewResult(m.ID, json.RawMessage(fmt.Sprintf(`{"tools":[{"name":"plain"},`+mirrored+`],"nextCursor":"two"}`, "first"))))
		case m.IsRequest():
			c.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{}`)))
		}
	}
}

// TestModernParams calls tools before any client has listed them, but for those
// calls that have nothing to check.
func TestModernParams(t *testing.T) {
	for _, tt := range []struct {
		name, tool, arguments string
		set                   []string
		status                int
	}{
		{"right", "first", `{"region":"eu","deep":{"n":42}}`, []string{"Mcp-Param-Region", "eu", "Mcp-Param-N", "42.0"}, 200},
		{"lower case", "second", `{"region":"eu"}`, []string{"mcp-param-region", "eu"}, 200},
		{"base64", "first", `{"region":"é"}`, []string{"Mcp-Param-Region", "=?base64?w6k=?="}, 200},
		{"nothing to say", "first", `{"region":null,"deep":{}}`, nil, 200},
		{"no arguments", "first", ``, nil, 200},
		{"unknown header", "first", `{"region":"eu"}`, []string{"Mcp-Param-Region", "eu", "Mcp-Param-Other", "x"}, 200},
		{"unknown tool", "third", `{"region":"eu"}`, []string{"Mcp-Param-Region", "us"}, 200},
		{"tool without", "plain", `{"region":"eu"}`, nil, 200},
		{"missing", "second", `{"region":"eu"}`, nil, 400},
		{"mismatch", "first", `{"region":"eu"}`, []string{"Mcp-Param-Region", "us"}, 400},
		{"value in another case", "first", `{"region":"eu"}`, []string{"Mcp-Param-Region", "EU"}, 400},
		{"extra", "first", `{}`, []string{"Mcp-Param-Region", "eu"}, 400},
		{"bad base64", "first", `{"region":"eu"}`, []string{"Mcp-Param-Region", "=?base64?ZXU?="}, 400},
		{"other number", "second", `{"deep":{"n":42}}`, []string{"Mcp-Param-N", "43"}, 400},
		{"two arguments", "first", `{},"arguments":{}`, nil, 400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ts := newTestServer(t, func(h *HTTP) { h.ServePrincipal = principal(tooled) })
			c := ts.at("/mcp")
			params := fmt.Sprintf(`"name":%q`, tt.tool)
			if tt.arguments != "" {
				params += `,"arguments":` + tt.arguments
			}
			if tt.set == nil {
				c.do(c.modern("1", "tools/list", ""))
				c.do(c.modern("1", "tools/list", `"cursor":"two"`))
			}
			for range 2 { // the second time the tools are known
				req := c.modern("5", "tools/call", params, append([]string{"Mcp-Name", tt.tool}, tt.set...)...)
				resp := c.do(req)
				body := wantStatus(t, resp, tt.status)
				if tt.status == 400 && !strings.Contains(body, `"id":5,"error":{"code":-320`) && !strings.Contains(body, "-32602") {
					t.Errorf("body %s", body)
				}
			}
		})
	}
}

// TestModernParamsLearned: a list that a client asks for is as good, and the last
// one counts.
func TestModernParamsLearned(t *testing.T) {
	ts := newTrunkServer(t, nil)
	c := ts.at("/mcp")
	list := func(trunk jsonrpc.Conn, tools string) jsonrpc.Conn {
		got := c.send(c.modern("1", "tools/list", ""))
		if trunk == nil {
			trunk = conntest.Await(t, "trunk", ts.conns)
		}
		m := conntest.Recv(t, trunk)
		trunk.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{"tools":[`+tools+`]}`)))
		wantStatus(t, conntest.Await(t, "list", got), 200)
		return trunk
	}
	call := func() *http.Request {
		return c.modern("2", "tools/call", `"name":"a","arguments":{"region":"eu"}`, "Mcp-Param-Region", "us")
	}
	trunk := list(nil, fmt.Sprintf(mirrored, "a"))
	wantBody(t, c.do(call()), 400, `{"jsonrpc":"2.0","id":2,"error":{"code":-32020,"message":"Header mismatch: Mcp-Param-Region is missing, or is not what the body says"}}`)
	list(trunk, `{"name":"a","inputSchema":{}}`)
	got := c.send(call())
	m := conntest.Recv(t, trunk)
	trunk.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{}`)))
	wantStatus(t, conntest.Await(t, "result", got), 200)
	if h := ts.onlyTrunk().tools; h.bytes != 0 || len(h.mirrors) != 0 {
		t.Errorf("remembers %v", h.mirrors)
	}
}

// TestModernFirstPage: who has seen one page does not know the tools.
func TestModernFirstPage(t *testing.T) {
	ts := newTestServer(t, func(h *HTTP) { h.ServePrincipal = principal(tooled) })
	c := ts.at("/mcp")
	wantStatus(t, c.do(c.modern("1", "tools/list", "")), 200)
	wantStatus(t, c.do(c.modern("2", "tools/call", `"name":"second","arguments":{"region":"eu"}`, "Mcp-Param-Region", "us")), 400)
}

// TestModernListsOnce: calls wait for one listing, which says who asks but wants
// no progress and no log; if it does not come, they go on.
func TestModernListsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var trunks <-chan jsonrpc.Conn
		ts := newBubbleServer(t, func(h *HTTP) { trunks = manualPrincipal(h) })
		c := ts.at("/mcp")
		meta := strings.Replace(metaText, `{"`, `{"progressToken":1,"io.modelcontextprotocol/logLevel":"debug","traceparent":"x","`, 1)
		text := strings.Replace(modernText("1", "tools/call", `"name":"a"`), metaText, meta, 1)
		for range 2 {
			c.send(c.request(http.MethodPost, text, "MCP-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "a", "Mcp-Param-A", "x"))
		}
		trunk := <-trunks
		start := time.Now()
		list := conntest.Recv(t, trunk)
		wantText(t, list, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":`+strings.Replace(strings.TrimPrefix(metaText, `"_meta":`), `{"`, `{"traceparent":"x","`, 1)+`}}`)
		wantCancel(t, trunk, list)
		for range 2 {
			if m := conntest.Recv(t, trunk); m.Method != "tools/call" {
				t.Errorf("received %s", m.Append(nil))
			}
		}
		if took := time.Since(start); took != listPatience {
			t.Errorf("the calls waited %v", took)
		}
		c.send(c.modern("1", "tools/call", `"name":"a"`, "Mcp-Param-A", "x"))
		if m := conntest.Recv(t, trunk); m.Method != "tools/call" {
			t.Errorf("received %s", m.Append(nil))
		}
	})
}

// TestModernCallsAskForNoTools: a call reaches only the upstream that it is for.
func TestModernCallsAskForNoTools(t *testing.T) {
	ts := newTrunkServer(t, nil)
	c := ts.at("/mcp")
	got := c.send(c.modern("1", "tools/call", `"name":"a"`))
	trunk := conntest.Await(t, "trunk", ts.conns)
	m := conntest.Recv(t, trunk)
	if m.Method != "tools/call" {
		t.Errorf("received %s", m.Append(nil))
	}
	trunk.Send(jsonrpc.NewResult(m.ID, json.RawMessage(`{}`)))
	wantStatus(t, conntest.Await(t, "result", got), 200)
}

// TestD32_BeforeTheCall drops a POST while the tools are listed for it: nothing is
// called.
func TestD32_BeforeTheCall(t *testing.T) {
	ts := newTrunkServer(t, nil)
	c := ts.at("/mcp")
	ctx, drop := context.WithCancel(t.Context())
	c.send(c.modern("1", "tools/call", `"name":"a"`, "Mcp-Param-A", "x").WithContext(ctx))
	trunk := conntest.Await(t, "trunk", ts.conns)
	list := conntest.Recv(t, trunk)
	drop()
	tr := ts.onlyTrunk()
	conntest.Eventually(t, "the POST has ended", func() bool { return tr.holds().open == 0 })
	trunk.Send(jsonrpc.NewResult(list.ID, json.RawMessage(noTools)))
	wantDead(t, trunk, c, list)
}

// TestModernRemembersLittle: schemas of an upstream cannot fill the memory.
func TestModernRemembersLittle(t *testing.T) {
	var l tools
	tool := mirrorsOf(json.RawMessage(fmt.Sprintf(`[`+mirrored+`]`, strings.Repeat("n", 1000))))[0]
	for i := range 3000 {
		l.setLocked(fmt.Sprint(i, tool.name), tool.mirrors)
	}
	if l.bytes > maxMirrors || len(l.mirrors) < 100 || len(l.mirrors) > 1000 {
		t.Errorf("%d tools, %d bytes", len(l.mirrors), l.bytes)
	}
	for name := range l.mirrors {
		l.setLocked(name, nil)
	}
	if l.bytes != 0 {
		t.Errorf("%d bytes of nothing", l.bytes)
	}
}
