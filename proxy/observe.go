package proxy

import (
	"context"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// What can be seen of a proxy.
type (
	Snapshot       = observe.Snapshot
	UpstreamStatus = observe.Upstream
	LinkStatus     = observe.Link
)

// ReapOrphans waits, until ctx ends, for processes whose parents have left them to this
// one, as the first process of a container has to. It does nothing in any other. Only
// the program can know that nobody else waits for them.
func ReapOrphans(ctx context.Context) { process.ReapOrphans(ctx) }
