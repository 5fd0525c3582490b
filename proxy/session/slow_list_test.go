package session

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Nobody else waits for the list of a sole upstream: it may take longer than listTimeout, but no page longer than
// requestTimeout.
func TestSlowListOfSoleUpstream(t *testing.T) {
	for timeout, want := range map[time.Duration]string{0: "t3", 2 * time.Second: "t3", time.Second / 2: "Request timed out"} {
		router := &Router{Upstreams: []Upstream{{Name: "a", RequestTimeout: timeout}}, Limits: Limits{ListTimeout: 2 * time.Second}}
		inWorld(t, router, nil, func(w *world) {
			w.hands = map[string]func(*party, *jsonrpc.Message){"a": func(p *party, m *jsonrpc.Message) {
				if m.Method != "tools/list" {
					echo("a")(p, m)
					return
				}
				var n int
				cursor, _ := jsonrpc.Member(m.Params, "cursor")
				fmt.Sscanf(string(cursor), `"%d"`, &n)
				next := fmt.Sprintf(`,"nextCursor":"%d"`, n+1)
				if n == 3 {
					next = ""
				}
				answer := jsonrpc.NewResult(m.ID, json.RawMessage(fmt.Sprintf(`{"tools":[{"name":"t%d"}]%s}`, n, next)))
				time.AfterFunc(time.Second, func() { p.conn.Send(answer) })
			}}
			w.initialize()
			w.client.take()
			w.client.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			got := strings.Join(w.client.take(), "\n")
			if !strings.Contains(got, want) {
				t.Errorf("with %v the client got %s", timeout, got)
			}
		})
	}
}
