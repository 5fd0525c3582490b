package upstream

import (
	"errors"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// TestSentWhileEnding replaces an upstream while a client sends its first call: if the server gets that, the end
// must not say that nothing was delivered.
func TestSentWhileEnding(t *testing.T) {
	r := newRig(t, fakeCommand())
	var c *client
	attached := make(chan struct{})
	r.host.Hooks.UpstreamEnded = func(observe.Upstream, observe.End) {
		<-attached
		c.send("echo", 1)
		time.Sleep(200 * time.Millisecond) // in which a server would answer
	}
	c = r.attach("k")
	close(attached)
	eventually(t, "the server", func() bool { all := r.host.Status(); return len(all) > 0 && all[0].PID != 0 })
	r.host.Replace(r.host.Upstreams, []string{"fake"})
	end, ok := errors.AsType[*jsonrpc.ClosedError](c.returned())
	if !ok {
		t.Fatal("no cause")
	}
	if m, err := c.Recv(); err == nil && !end.Delivered {
		t.Errorf("not delivered, but answered: %s", m.Append(nil))
	}
}
