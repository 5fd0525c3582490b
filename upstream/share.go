package upstream

import (
	"context"
	"errors"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/pool"
)

// sharedKey is the key of the claim on a server that many streams share, where its
// failures are counted.
const sharedKey = "shared"

// share is attachIn for a stream that shares its server: the contract is the same,
// but the server stays when the stream is closed.
func (h *Host) share(ctx context.Context, t target, id claimID, c jsonrpc.Conn) error {
	return h.pool().Attach(ctx, h.sharedUpstream(t), id.era, short(id.key), !mcp.IsPrincipalKey(id.key), c)
}

// sharedUpstream returns what the pool has to know of an upstream.
func (h *Host) sharedUpstream(t target) pool.Upstream {
	return pool.Upstream{
		Name: t.name, Roots: t.up.Roots, Modern: t.up.only() == mcp.Modern, Misread: t.eras.forget,
		Serve: func(ctx context.Context, era mcp.Era, c jsonrpc.Conn, onTrial func() bool) error {
			return h.attachAlone(ctx, attachment{target: t, id: claimID{t.name, sharedKey, era}, trial: onTrial}, c)
		},
	}
}

// pool returns the servers that many streams share.
func (h *Host) pool() *pool.Shared {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.poolLocked()
}

func (h *Host) poolLocked() *pool.Shared {
	if h.sharing == nil {
		h.sharing = &pool.Shared{Log: h.Log, MaxMessage: h.Limits.MaxMessage(), Unattributed: h.unattributed}
	}
	return h.sharing
}

// unattributed has the Bridge know of what a shared upstream could not ask.
func (h *Host) unattributed(upstream string) {
	if h.Bridge != nil {
		h.Bridge.Unattributed(upstream)
	}
}

// EndIdle ends the servers of the modern era that have no stream, as they do by
// themselves when they are without any for a while.
func (h *Host) EndIdle() { h.pool().EndIdle() }

var errStops = errors.New("the host stops")

// Stop ends the shared upstreams, which outlive their streams, as they wish and by
// force when ctx is done. It returns when every process and goroutine of the host
// is gone, and so must wait for the other streams to be ended by their owners. None
// is attached any more.
func (h *Host) Stop(ctx context.Context) {
	h.mu.Lock()
	h.stopped = true
	shared, endProbes := h.poolLocked(), h.endProbes
	h.mu.Unlock()
	if endProbes != nil {
		endProbes()
	}
	h.tellLosses()
	shared.Stop(ctx)
	h.wg.Wait()
}
