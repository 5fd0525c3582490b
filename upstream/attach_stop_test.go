//go:build unix

package upstream

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/conntest"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// wantStopped checks that a stream ended because the host stops, and started nothing.
func wantStopped(t *testing.T, r *rig, err error) {
	t.Helper()
	end, ok := errors.AsType[*jsonrpc.ClosedError](err)
	if !ok || end.Cause != jsonrpc.CauseHostStopped || end.Delivered {
		t.Errorf("got %v", err)
	}
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	if len(r.host.restarts.all) != 0 {
		t.Error("restart states:", len(r.host.restarts.all))
	}
}

// Whatever comes after the host has begun to stop is not started.
func TestAttachAfterStop(t *testing.T) {
	r := newRig(t, fakeCommand())
	r.host.Stop(t.Context())
	wantStopped(t, r, conntest.Await(t, "end of the stream", r.attach("late").done))
	c := r.host.Open(t.Context(), "fake", "late", mcp.Legacy)
	_, err := conntest.RecvOrEnd(t, c)
	wantStopped(t, r, err)
	c.Close()
}

// Attach and Stop at once: each stream is waited for, or was refused.
func TestRaceAttachAndStop(t *testing.T) {
	for range 200 {
		r := newRigOf(t, Upstream{Dial: func(context.Context) (jsonrpc.Conn, error) { return nil, errors.New("refused") }})
		var attached sync.WaitGroup
		for range 4 {
			attached.Go(func() {
				_, far := jsonrpc.Pipe()
				attach(t.Context(), r.host, "fake", "key", mcp.Legacy, far)
			})
		}
		r.host.Stop(t.Context())
		attached.Wait()
	}
}
