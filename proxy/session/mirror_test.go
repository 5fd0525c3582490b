package session

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// mirrored is a tool with parameters that headers repeat.
const mirrored = `{"name":%q,"inputSchema":{"type":"object","properties":{
	"region":{"type":"string","x-mcp-header":"Region"},
	"deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}}}}}`

// lists makes an upstream list these tools, one a page; otherwise it is an echo.
func (w *world) lists(upstream string, tools ...string) {
	hand := func(p *party, m *jsonrpc.Message) {
		if m.Method != "tools/list" {
			echo(upstream)(p, m)
			return
		}
		raw, _ := jsonrpc.Member(m.Params, "cursor")
		cursor, _ := jsonrpc.Unquote(raw)
		result := jsonrpc.Set(nil, jsonrpc.Value{Key: "tools", Text: json.RawMessage(`[` + tools[len(cursor)] + `]`)})
		if len(cursor)+1 < len(tools) {
			result = jsonrpc.Set(result, jsonrpc.Value{Key: "nextCursor", Text: jsonrpc.Quote(cursor + "x")})
		}
		p.conn.Send(jsonrpc.NewResult(m.ID, result))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hands == nil {
		w.hands = map[string]func(*party, *jsonrpc.Message){}
	}
	w.hands[upstream] = hand
	for _, p := range w.conns[stream(upstream, w.era)] {
		p.handle(hand)
	}
}

// callsWith makes the client call a tool over a transport with headers: alternating names and
// values.
func (w *world) callsWith(id int, tool, arguments string, headers ...string) {
	w.t.Helper()
	params := fmt.Sprintf(`"name":%q`, tool)
	if arguments != "" {
		params += `,"arguments":` + arguments
	}
	m := decode(w.t, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{%s}}`, id, params))
	m.Headers = map[string][]string{}
	for i := 0; i < len(headers); i += 2 {
		m.Headers[headers[i]] = append(m.Headers[headers[i]], headers[i+1])
	}
	w.client.send(m)
}

// wantCode checks that the client gets one answer, with this error code; 0 is none.
func (w *world) wantCode(code int) {
	w.t.Helper()
	got := w.client.take()
	if len(got) != 1 || strings.Contains(got[0], `"error"`) != (code != 0) || code != 0 && !strings.Contains(got[0], fmt.Sprintf(`"code":%d`, code)) {
		w.t.Errorf("got %q, want code %d", got, code)
	}
}

// asked returns how often an upstream was asked for something since the last check.
func (w *world) asked(upstream, method string) (n int) {
	w.mu.Lock()
	conns := len(w.conns[stream(upstream, w.era)])
	w.mu.Unlock()
	if conns == 0 {
		return 0
	}
	for _, m := range w.upstream(upstream).take() {
		if strings.Contains(m, `"method":"`+method+`"`) {
			n++
		}
	}
	return n
}

const mismatched = mcp.CodeHeaderMismatch

// Headers are compared with the arguments of the resolved tool, whether or not its upstream was
// listed before.
func TestHeaders(t *testing.T) {
	for _, tt := range []struct {
		name, tool, arguments string
		headers               []string
		code                  int
	}{
		{"right", "first", `{"region":"eu","deep":{"n":42}}`, []string{"mcp-param-region", "eu", "mcp-param-n", "42.0"}, 0},
		{"base64", "first", `{"region":"é"}`, []string{"mcp-param-region", "=?base64?w6k=?="}, 0},
		{"nothing to say", "first", `{"region":null,"deep":{}}`, nil, 0},
		{"no arguments", "first", ``, nil, 0},
		{"unknown header", "first", `{"region":"eu"}`, []string{"mcp-param-region", "eu", "mcp-param-other", "x"}, 0},
		{"tool without", "plain", `{"region":"eu"}`, []string{"mcp-param-region", "us"}, 0},
		{"bad annotation", "bad", `{"region":"eu"}`, nil, 0},
		{"missing", "second", `{"region":"eu"}`, nil, mismatched},
		{"mismatch", "first", `{"region":"eu"}`, []string{"mcp-param-region", "us"}, mismatched},
		{"value in another case", "first", `{"region":"eu"}`, []string{"mcp-param-region", "EU"}, mismatched},
		{"extra", "first", `{}`, []string{"mcp-param-region", "eu"}, mismatched},
		{"twice", "first", `{"region":"eu"}`, []string{"mcp-param-region", "eu", "mcp-param-region", "eu"}, mismatched},
		{"bad base64", "first", `{"region":"eu"}`, []string{"mcp-param-region", "=?base64?ZXU?="}, mismatched},
		{"other number", "second", `{"deep":{"n":42}}`, []string{"mcp-param-n", "43"}, mismatched},
		{"two arguments", "first", `{},"arguments":{}`, nil, jsonrpc.CodeInvalidParams},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for upstreams, names := range map[string][]string{"a": {tt.tool}, "a b": {"a__" + tt.tool, tt.tool}} {
				for _, name := range names {
					inModernWorld(t, &Router{}, strings.Fields(upstreams), func(w *world) {
						w.lists("a", `{"name":"plain"}`, fmt.Sprintf(mirrored, "first"), fmt.Sprintf(mirrored, "second"),
							strings.Replace(fmt.Sprintf(mirrored, "bad"), "string", "object", 1))
						for id := range 2 { // the second time the tools are known
							w.callsWith(id, name, tt.arguments, tt.headers...)
							w.wantCode(tt.code)
						}
						if name != tt.tool && w.asked("b", "tools/list") > 0 {
							t.Error("another upstream was asked, too")
						}
					})
				}
			}
		})
	}
}

func TestHeaderMismatchSays(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"a"}, func(w *world) {
		w.lists("a", fmt.Sprintf(mirrored, "x"))
		w.callsWith(1, "x", `{"region":"eu"}`)
		w.client.want(`{"jsonrpc":"2.0","id":1,"error":{"code":-32020,"message":"Header mismatch: Mcp-Param-Region is missing, comes twice, or is not what the body says"}}`)
		if n := w.asked("a", "tools/call"); n != 0 {
			t.Error("the tool was called")
		}
	})
}

// A transport without headers repeats nothing, and causes no list.
func TestHeadersOfNoTransport(t *testing.T) {
	inEras(t, &Router{}, []string{"a"}, func(w *world) {
		w.initialize()
		w.lists("a", fmt.Sprintf(mirrored, "x"))
		w.list()
		w.asked("a", "tools/list")
		w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":{"region":"eu"}}}`)
		w.wantCode(0)
		if n := w.asked("a", "tools/list"); n != 0 {
			t.Error("listed for a call that needs it not")
		}
	})
}

// Tools may change: a tool that is unknown, or whose headers do not agree, is listed again, but not
// for ever.
func TestHeadersOfChangedTools(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"a"}, func(w *world) {
		w.lists("a", fmt.Sprintf(mirrored, "x"))
		w.callsWith(1, "x", `{"region":"eu"}`, "mcp-param-region", "eu")
		w.wantCode(0)
		w.lists("a", `{"name":"x"}`, fmt.Sprintf(mirrored, "y"))
		time.Sleep(relist)
		w.asked("a", "tools/list")
		w.callsWith(2, "x", `{"region":"eu"}`, "mcp-param-region", "us")
		w.wantCode(0) // it has none any more
		w.callsWith(3, "y", `{"region":"eu"}`)
		w.wantCode(mismatched)
		if n := w.asked("a", "tools/list"); n != 2 { // pages
			t.Errorf("pages listed: %d, want 2", n)
		}
		for id := range 10 {
			w.callsWith(10+id, "z", `{"region":"eu"}`)
			w.wantCode(0) // as its upstream says
		}
		if n := w.asked("a", "tools/list"); n != 0 {
			t.Errorf("pages listed: %d, want none within %v", n, relist)
		}
		time.Sleep(relist)
		w.callsWith(30, "z", "")
		w.wantCode(0)
		if n := w.asked("a", "tools/list"); n != 2 {
			t.Errorf("pages listed: %d, want 2", n)
		}
	})
}

// If the tools cannot be listed, calls are not checked; one call waits for a missing list, and then
// none for a while.
func TestHeadersWithoutList(t *testing.T) {
	for _, late := range []bool{false, true} {
		inModernWorld(t, &Router{}, []string{"a"}, func(w *world) {
			w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
				switch {
				case m.Method != "tools/list":
					echo("a")(p, m)
				case !late:
					p.conn.Send(jsonrpc.NewError(m.ID, &jsonrpc.Error{Code: -32603, Message: "x"}))
				}
			}}
			for id := range 5 {
				began := time.Now()
				w.callsWith(id, "x", `{"region":"eu"}`)
				synctest.Wait()
				if late && id == 0 {
					w.client.want()
					time.Sleep(w.proxy.listTimeout())
				}
				w.wantCode(0)
				if took := time.Since(began); took > 0 && id > 0 {
					t.Errorf("call %d waited %v", id, took)
				}
			}
			if !late {
				return
			}
			time.Sleep(relearn)
			w.lists("a", fmt.Sprintf(mirrored, "x"))
			w.callsWith(9, "x", `{"region":"eu"}`)
			w.wantCode(mismatched)
		})
	}
}

// A call that is cancelled while the tools are listed for it is not sent.
func TestD32_BeforeTheCall(t *testing.T) {
	inModernWorld(t, &Router{}, []string{"a"}, func(w *world) {
		w.hands = map[string]func(*party, *jsonrpc.Message){"a": nothing}
		w.callsWith(1, "x", `{"region":"eu"}`)
		a := w.upstream("a")
		if n := w.asked("a", "tools/list"); n != 1 {
			t.Fatal("lists:", n)
		}
		w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		a.want(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"no longer needed"}}`)
		a.say(`{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}`)
		a.want()
		w.client.want()
	})
}

func nothing(*party, *jsonrpc.Message) {}
