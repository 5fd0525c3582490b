package upstream

import (
	"context"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// share serves one client stream of a shared upstream.
func (h *Host) share(ctx context.Context, name, key string, up *Upstream, c jsonrpc.Conn) error {
	return h.attachAlone(ctx, claimID{name, key}, up, c)
}

// Stop waits until every process and goroutine of the host is gone.
func (h *Host) Stop(context.Context) { h.wg.Wait() }
