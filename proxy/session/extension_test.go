package session

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// FuzzExtensions compares a sole upstream with a direct connection: requests, results and
// notifications of unknown methods are the same bytes at both ends, but for the ids and progress
// tokens of each hop. What the proxy refuses does not reach the upstream.
func FuzzExtensions(f *testing.F) {
	for _, params := range []string{
		`{}`, `{"a":1.0,"b":[1e3,"ü",null]}`, `{"name":"x__y","uri":"file:///a","taskId":"t"}`, `[1]`, `{"_meta":{"progressToken":"p","own":1.0}}`,
		`{"_meta":{"progressToken":7},"progressToken":7}`, `{"_meta":{"io.modelcontextprotocol/subscriptionId":1}}`, `{"_meta":[],"_meta":1}`, `{"\u005fmeta":{}}`,
	} {
		f.Add("acme/do", params, `1`)
		f.Add("acme/list", params, `"x"`)
		f.Add("tasks/own", params, `-1.5e3`)
	}
	f.Fuzz(func(t *testing.T, method, params, id string) {
		if mcp.MethodOf(method).Name != "" || method == "" {
			return
		}
		name := string(jsonrpc.Quote(method))
		request, err := jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","id":` + id + `,"method":` + name + `,"params":` + params + `}`))
		if err != nil || !request.IsRequest() || request.Method != method {
			return
		}
		if n := mcp.Read(request); strings.Contains(params, "protocolVersion") || n.Has(mcp.Token) || n.Has(mcp.Version) {
			return // of another era, or with what differs from hop to hop: other tests
		}
		params = string(request.Params)
		inWorldOf(t, mcp.Legacy, &Router{}, []string{"files"}, func(w *world) {
			var result json.RawMessage
			w.hands = map[string]func(*party, *jsonrpc.Message){"files": func(p *party, m *jsonrpc.Message) {
				if !m.IsRequest() || m.Method != method {
					echo("files")(p, m)
					return
				}
				result = m.Params
				if len(result) == 0 || result[0] != '{' {
					result = json.RawMessage(`{"x":1.0}`)
				}
				p.conn.Send(jsonrpc.NewNotification(method, m.Params))
				p.conn.Send(jsonrpc.NewResult(m.ID, result))
			}}
			w.initialize()
			w.client.take()
			server := w.upstream("files")
			server.take()
			w.client.send(request)
			synctest.Wait()
			got, back := strings.Join(server.take(), "\n"), strings.Join(w.client.take(), "\n")
			folded := strings.NewReplacer("ſ", "s", "\u212a", "k").Replace(strings.ToLower(params))                                           // as a server may read keys
			ours := strings.Contains(folded, "progresstoken") || strings.Contains(folded, "subscriptionid") || strings.Contains(folded, `\u`) // may name a request
			switch refused := strings.Contains(back, `"error":{"code":-32602`) || strings.Contains(back, `"error":{"code":-32600`); {
			case refused && got != "":
				t.Errorf("refused by %s, but the server got %s", back, got)
			case refused:
				return
			case !strings.HasSuffix(got, `"method":`+name+`,"params":`+params+`}`):
				t.Errorf("the server got %s of %s", got, params)
			case ours:
			case !strings.Contains(back, `"method":`+name+`,"params":`+params+`}`):
				t.Errorf("the client got %s, without the notification with %s", back, params)
			case !strings.Contains(back, `"result":`+string(result)+`}`):
				t.Errorf("the client got %s, without the result %s", back, result)
			}
			w.client.send(jsonrpc.NewNotification(method, request.Params))
			synctest.Wait()
			if got := strings.Join(server.take(), "\n"); !(ours && got == "") && !strings.HasSuffix(got, `"method":`+name+`,"params":`+params+`}`) {
				t.Errorf("the server got the notification %s of %s", got, params)
			}
		})
	})
}

const inMeta = `"_meta":{"io.modelcontextprotocol/subscriptionId":`

// extended makes calls of extensions on two upstreams, and returns what each of them got.
func (w *world) extended() (a, b string) {
	w.initialize()
	w.client.take()
	hold := func(p *party, m *jsonrpc.Message) {
		if !strings.HasPrefix(m.Method, "acme/") {
			echo("a")(p, m)
		}
	}
	for _, name := range []string{"a", "b"} {
		w.upstream(name).handle(hold)
		w.client.say(`{"jsonrpc":"2.0","id":"` + name + `1","method":"acme/` + name + `","params":{"_meta":{"progressToken":"t` + name + `"}}}`)
	}
	synctest.Wait()
	id := func(name string) string {
		got := w.upstream(name).take()
		return decode(w.t, got[len(got)-1]).ID.String()
	}
	a, b = id("a"), id("b")
	w.client.take()
	return a, b
}

// A server that names, in messages of an extension, requests that are over, never were, or are another
// server's, or that answers those, reaches nobody. What is its own passes.
func TestD51_ServerLies(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		p := &Router{Upstreams: []Upstream{{Name: "a", Methods: []string{"acme/a"}}, {Name: "b", Methods: []string{"acme/b"}}}}
		inWorldOf(t, era, p, nil, func(w *world) {
			own, others := w.extended()
			a := w.upstream("a")
			w.upstream("b").say(`{"jsonrpc":"2.0","id":` + others + `,"result":{"by":"b"}}`)
			w.client.want(`{"jsonrpc":"2.0","id":"b1","result":{"by":"b"}}`)
			for _, id := range []string{"0", "-1", `"x"`, "null", "[" + own + "]"} {
				a.say(`{"jsonrpc":"2.0","method":"acme/event","params":{` + inMeta + id + `}}}`)
				if id[0] != '[' && id != "null" {
					a.say(`{"jsonrpc":"2.0","id":` + id + `,"result":{"by":"a"}}`)
				}
			}
			a.say(`{"jsonrpc":"2.0","method":"acme/event","params":{` + inMeta + own + `},"progressToken":99}}`) // two
			a.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":99,"progress":1}}`)
			w.client.want()
			a.say(`{"jsonrpc":"2.0","method":"acme/event","params":{` + inMeta + own + `}}}`)
			w.client.want(`{"jsonrpc":"2.0","method":"acme/event","params":{` + inMeta + `"a1"}}}`)
			a.say(`{"jsonrpc":"2.0","id":` + own + `,"result":{"by":"a"}}`)
			for range 2 { // late
				a.say(`{"jsonrpc":"2.0","method":"acme/event","params":{` + inMeta + own + `}}}`)
				a.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":` + own + `,"progress":1}}`)
				a.say(`{"jsonrpc":"2.0","id":` + own + `,"result":{"by":"a"}}`)
			}
			w.client.want(`{"jsonrpc":"2.0","id":"a1","result":{"by":"a"}}`)
		})
	}
}

// A client names its open requests to the server that works on them. A request that names another one by
// what could be an id of ours is refused, and a notification dropped.
func TestD52_ClientNamesRequests(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		p := &Router{Upstreams: []Upstream{{Name: "a", Methods: []string{"acme/a"}}, {Name: "b", Methods: []string{"acme/b"}}}}
		inWorldOf(t, era, p, nil, func(w *world) {
			ownA, ownB := w.extended()
			a, b := w.upstream("a"), w.upstream("b")
			version := ""
			if era == mcp.Modern {
				version = `,"io.modelcontextprotocol/protocolVersion":"2026-07-28"`
			}
			tell := func(method, id string) {
				w.client.say(`{"jsonrpc":"2.0","method":"` + method + `","params":{` + inMeta + id + version + `}}}`)
			}
			ask := func(method, id string) {
				w.client.say(`{"jsonrpc":"2.0","id":"q","method":"` + method + `","params":{` + inMeta + id + `}}}`)
			}
			names := func(p *party, own string) {
				t.Helper()
				if got := p.take(); len(got) != 1 || !strings.Contains(got[0], inMeta+own) {
					t.Errorf("%v: the server got %q, without %s", era, got, own)
				}
			}
			tell("acme/unknown", `"a1"`)
			names(a, ownA)
			tell("acme/unknown", `"b1"`)
			names(b, ownB)
			tell("acme/a", `"a1"`)
			names(a, ownA)
			w.client.say(`{"jsonrpc":"2.0","method":"acme/a","params":{"progressToken":"ta","_meta":{"v":1` + version + `}}}`)
			if got := strings.Join(a.take(), ""); !strings.Contains(got, `"progressToken":`+ownA) {
				t.Errorf("%v: the server got %s", era, got)
			}
			ask("acme/unknown", `"a1"`)
			names(a, ownA)
			w.client.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q"}}`)
			a.take()
			for _, id := range []string{ownA, ownB, `"` + ownA + `"`, "1"} {
				ask("acme/a", id)
				w.client.want(`{"jsonrpc":"2.0","id":"q","error":{"code":-32602,"message":"Invalid params: unknown subscription"}}`)
				tell("acme/a", id)
			}
			ask("acme/a", `"b1"`)
			w.client.want(`{"jsonrpc":"2.0","id":"q","error":{"code":-32602,"message":"Invalid params: unknown subscription"}}`)
			tell("acme/a", `"b1"`)
			a.want()
			tell("acme/a", `"its own"`)
			names(a, `"its own"`)
			b.want()
		})
	}
}

// Ten thousand notifications of a stream reach a client that reads, in their order.
func TestD53_StreamFloods(t *testing.T) {
	p := &Router{Upstreams: []Upstream{{Name: "a", Methods: []string{"acme/a"}}, {Name: "b", Methods: []string{"acme/b"}}}}
	inWorldOf(t, mcp.Modern, p, nil, func(w *world) {
		own, others := w.extended()
		a, many := w.upstream("a"), 10_000
		for n := range many {
			a.say(`{"jsonrpc":"2.0","method":"acme/event","params":{"n":` + strconv.Itoa(n) + `,` + inMeta + own + `}}}`)
			if n == many/2 {
				w.upstream("b").say(`{"jsonrpc":"2.0","id":` + others + `,"result":{"by":"b"}}`)
			}
		}
		n, answered := 0, false
		for _, text := range w.client.take() {
			if strings.Contains(text, `"result"`) {
				answered = true
				continue
			}
			if !strings.Contains(text, `"n":`+strconv.Itoa(n)+`,`) {
				t.Fatalf("%s where %d belongs", text, n)
			}
			n++
		}
		if n != many || !answered {
			t.Errorf("%d notifications, and the other's answer: %v", n, answered)
		}
	})
}
