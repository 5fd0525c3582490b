package session

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// inEras is inWorld for a client of each era. The modern client sends and gets the same: a claim is
// inserted into its requests, and removed from the messages to upstreams, and so are the members
// that only modern results have. Instead of initialize it sends a server/discover, so that the ids
// at upstreams are the same, too.
func inEras(t *testing.T, p *Router, names []string, test func(w *world)) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		again := &Router{Upstreams: slices.Clone(p.Upstreams), Limits: Limits{InFlight: p.InFlight, MaxStart: p.MaxStart}, Hooks: p.Hooks}
		t.Run(string(era), func(t *testing.T) { inWorldOf(t, era, again, names, test) })
	}
}

// claim makes a request modern.
var claim = []jsonrpc.Value{
	{Key: mcp.KeyVersion, Text: json.RawMessage(`"2026-07-28"`)},
	{Key: mcp.KeyCapabilities, Text: json.RawMessage(`{}`)},
}

// text returns a message that p got.
func (p *party) text(m *jsonrpc.Message) string {
	if p.era != mcp.Modern {
		return sameEvent(string(m.Append(nil)))
	}
	out := *m
	if m.IsRequest() {
		out.Params = mcp.SetMeta(m.Params, jsonrpc.Value{Key: mcp.KeyVersion},
			jsonrpc.Value{Key: mcp.KeyCapabilities}, jsonrpc.Value{Key: mcp.KeyClientInfo})
		if string(out.Params) == `{}` {
			out.Params = nil
		}
	}
	return sameEvent(ofModern.Replace(string(out.Append(nil))))
}

// ofModern removes members that only modern results have.
var ofModern = strings.NewReplacer(
	`,"resultType":"complete","ttlMs":0,"cacheScope":"private"`, "",
	`"result":{"resultType":"complete"}`, `"result":{}`,
	`,"resultType":"complete"`, "",
	`,"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"mcp-proxy","version":"dev"}}`, "",
)

// Calls that need the same table wait for one list request. If its caller leaves, the next caller
// lists.
func TestManyCallsListOnce(t *testing.T) {
	inEras(t, &Router{}, []string{"a", "b"}, func(w *world) {
		w.initialize()
		a := w.upstream("a")
		a.mute()
		a.take()
		for id := range 10 {
			w.client.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"a__echo"}}`, id))
		}
		if got := a.take(); len(got) != 1 || !strings.Contains(got[0], "tools/list") {
			t.Errorf("upstream got %q", got)
		}
		lists := 1
		for id := range 8 { // one of them is who lists
			w.client.say(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id))
			for _, m := range a.take() {
				if strings.Contains(m, "tools/list") {
					lists++
				}
			}
		}
		a.handle(echo("a"))
		a.conn.Send(jsonrpc.NewResult(jsonrpc.IntID(int64(1+lists)), json.RawMessage(`{"tools":[{"name":"echo"}]}`)))
		got := w.client.take()
		slices.Sort(got)
		if len(got) != 2 || !strings.HasPrefix(got[0], `{"jsonrpc":"2.0","id":8,"result"`) || !strings.HasPrefix(got[1], `{"jsonrpc":"2.0","id":9,"result"`) {
			t.Errorf("got %q", got)
		}
	})
}

// closing is the text of the error for requests of a client whose own connection ends.
func (w *world) closing(id any, phase string) string {
	code := jsonrpc.CodeConnectionClosed
	if w.era == mcp.Modern {
		code = jsonrpc.CodeInternalError
	}
	return cc(id, code, "", "", phase)
}
