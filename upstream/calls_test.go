//go:build unix

package upstream

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// A host that tells hooks of requests knows which are open, and what they wait for.
func TestCallsOfHost(t *testing.T) {
	r := newRig(t, fakeCommand())
	r.host.Hooks = observe.Hooks{CallEnded: func(observe.Call, observe.End) {}}
	now := func(want string) {
		t.Helper()
		got := ""
		defer func() {
			if t.Failed() {
				t.Logf("it said %q", got)
			}
		}()
		eventually(t, want, func() bool {
			got = ""
			for _, c := range r.host.Calls() {
				if got += fmt.Sprintln(c.Session, c.Upstream, c.Era, c.Method, c.Tool, c.WaitsFor); c.Began.IsZero() {
					t.Error("nobody knows when it came")
				}
			}
			return got == want
		})
	}
	c := r.start("a-long-key")
	now("")
	c.sendParams("tools/call", `{"name":"slow one","arguments":{"name":"x"}}`) // which it does not know: there is an answer
	c.recv()
	now("")
	c.send("hang", 0)
	now("a-long-k fake legacy other  upstream\n")
	c.send("ask", 0)
	c.recv() // the question
	now("a-long-k fake legacy other  client\na-long-k fake legacy other  client\n")
	c.Close()
	c.returned()
	now("")
}

// The tool of a call is kept if its params are few.
func TestToolOfCall(t *testing.T) {
	for params, want := range map[string]string{
		`{"name":"read","arguments":{}}`:                                        "read",
		fmt.Sprintf(`{"name":"read","arguments":{"x":"%0*d"}}`, 2*maxParams, 1): "",
		`{"name":7}`: "",
		`{"name":"` + strings.Repeat("x", 1000) + `"}`: strings.Repeat("x", maxTool),
	} {
		c := &openCall{}
		c.keep(jsonrpc.NewRequest(jsonrpc.IntID(1), "tools/call", json.RawMessage(params)))
		if got := c.tool(); got != want {
			t.Errorf("%.30s: %q", params, got)
		}
	}
}
