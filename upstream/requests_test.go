//go:build unix

package upstream

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// A host tells of each request that a server of it gets once, and of its one end.
func TestRequestsAreTold(t *testing.T) {
	var mu sync.Mutex
	var ends []string
	open := 0
	told := func(want ...string) {
		t.Helper()
		eventually(t, fmt.Sprint(want), func() bool {
			mu.Lock()
			defer mu.Unlock()
			return open == 0 && slices.Equal(ends, want)
		})
		mu.Lock()
		ends = nil
		mu.Unlock()
	}
	r := newRig(t, fakeCommand())
	r.host.Hooks = observe.Hooks{
		CallBegan: func(observe.Call) {
			mu.Lock()
			defer mu.Unlock()
			open++
		},
		CallEnded: func(q observe.Call, end observe.End) {
			mu.Lock()
			defer mu.Unlock()
			open--
			ends = append(ends, fmt.Sprintln(q.Session, q.Upstream, q.Era, q.Method, end.Outcome, end.Cause, end.Event != ""))
		},
	}
	c := r.start("a-long-key")
	told("a-long-k fake legacy initialize ok  false\n")
	c.call("echo", 0)
	told("a-long-k fake legacy other ok  false\n")
	c.call("broken", 0)
	told("a-long-k fake legacy other invalid_response  false\n")
	c.Send(mcp.Cancellation(c.send("hang", 0), "enough"))
	told("a-long-k fake legacy other cancelled  false\n")
	c.send("hang", 0)
	c.send("exit", 3)
	c.end()
	told("a-long-k fake legacy other closed exited true\n", "a-long-k fake legacy other closed exited true\n")

	c = r.start("again")
	c.send("hang", 0)
	c.call("echo", 0)
	c.Close() // the proxy hangs up
	c.returned()
	told("again fake legacy initialize ok  false\n", "again fake legacy other ok  false\n", "again fake legacy other cancelled  false\n")
}
