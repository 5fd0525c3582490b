package upstream

import (
	"context"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// probe asks an upstream whether it speaks modern. A process is started for that, and
// kept if it does. told is false if it gave no answer that shows it.
func (h *Host) probe(t target) (modern, told bool, err error) {
	if t.up.Command != nil {
		return h.pool().Try(h.sharedUpstream(t))
	}
	ctx, err := h.probing()
	if err != nil {
		return false, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, t.up.startTimeout())
	defer cancel()
	modern, err = t.up.Probe(ctx)
	return modern, true, err
}

// probing returns the context of probes, which is done when the host stops.
func (h *Host) probing() (context.Context, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return nil, &jsonrpc.ClosedError{Cause: causeHostStopped, Err: errStops}
	}
	if h.probes == nil {
		h.probes, h.endProbes = context.WithCancel(context.Background())
	}
	return h.probes, nil
}
