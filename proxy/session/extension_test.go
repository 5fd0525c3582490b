package session

import (
	"encoding/json"
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
			ours := strings.Contains(params, "progressToken") || strings.Contains(params, "subscriptionId") || strings.Contains(params, `\u`) // may name a request
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
