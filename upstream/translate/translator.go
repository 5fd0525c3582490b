package translate

import (
	"context"
	"log/slog"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A Translator serves legacy clients of upstreams that speak modern. Its fields must
// not change once it serves.
type Translator struct {
	// Open returns a stream to an upstream, in an era that it speaks. It does not
	// wait for the upstream to start; what goes wrong is the end of the stream, a
	// [*jsonrpc.ClosedError]. Whoever opens it closes it.
	Open func(ctx context.Context, upstream, key string, era mcp.Era) jsonrpc.Conn

	Log *slog.Logger // nil discards
}

func (t *Translator) logger() *slog.Logger {
	if t.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return t.Log
}
