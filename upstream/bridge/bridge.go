package bridge

import (
	"context"
	"log/slog"
	"time"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/mcp"
)

// A Bridge translates between the streams of clients and upstreams of the other
// era. Its fields must not change once it serves.
type Bridge struct {
	// Open returns a stream to an upstream, in an era that it speaks. It does not
	// wait for the upstream to start; what goes wrong is the end of the stream, a
	// [*jsonrpc.ClosedError]. Whoever opens it closes it.
	Open func(ctx context.Context, upstream, key string, era mcp.Era) jsonrpc.Conn

	Idle    time.Duration // without use, of a legacy session that is kept for modern clients; zero means 5 min
	ParkFor time.Duration // for an answer to what a parked call asks; zero means 10 min

	Log *slog.Logger // nil discards
}

func (b *Bridge) logger() *slog.Logger {
	if b.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return b.Log
}
