//go:build unix

package upstream

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
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

// TestSentWhileForced forces the stream of a client of a shared server to end just when the client has sent calls.
func TestSentWhileForced(t *testing.T) {
	for range 50 {
		inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
			c := w.start("a")
			s := w.server()
			s.heard()
			for i := range 20 {
				_ = c.conn.Send(parse(t, fmt.Sprintf(`{"id":%d,"method":"tools/call","params":{"name":"x"}}`, i)))
			}
			c.cancel(errors.New("forced"))
			synctest.Wait()
			got := s.heard()
			c.mu.Lock()
			defer c.mu.Unlock()
			if end, ok := errors.AsType[*jsonrpc.ClosedError](c.end); ok && !end.Delivered && len(got) > 0 {
				t.Errorf("not delivered, and the server got %d messages", len(got))
			}
		})
		if t.Failed() {
			return
		}
	}
}

// TestSentWhileDialled replaces a remote upstream while it is dialled, in vain: nothing is sent any more.
func TestSentWhileDialled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, server := jsonrpc.Pipe()
		reached := make(chan struct{})
		dial := func(context.Context) (jsonrpc.Conn, error) { <-reached; return near, nil }
		h := &Host{Upstreams: map[string]Upstream{"u": {Era: mcp.Modern, DialModern: dial, Dial: dial, Relates: true}}}
		client, far := jsonrpc.Pipe()
		done := make(chan error, 1)
		go func() { done <- attach(context.Background(), h, "u", "k", mcp.Modern, far) }()
		_ = client.Send(parse(t, `{"id":1,"method":"tools/call","params":{"name":"x"}}`))
		synctest.Wait()
		h.Replace(map[string]Upstream{}, []string{"u"})
		if _, err := client.Recv(); err == nil {
			t.Error("the stream goes on")
		}
		close(reached)
		if m, err := server.Recv(); err == nil {
			t.Errorf("the server got %s", m.Append(nil))
		}
		server.Close()
		client.Close()
		if end, ok := errors.AsType[*jsonrpc.ClosedError](<-done); !ok || end.Delivered {
			t.Errorf("ended with %+v", end)
		}
		h.Stop(context.Background())
	})
}
