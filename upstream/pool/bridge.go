package pool

import (
	"context"
	"log/slog"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A Bridge translates between the streams of clients and upstreams of the other
// era. Its fields must not change once it serves.
type Bridge struct {
	// Open returns a stream to an upstream, in an era that it speaks. It does not
	// wait for the upstream to start; what goes wrong is the end of the stream, a
	// [*jsonrpc.ClosedError]. An answer to initialize that is no result is followed by
	// such an end. Whoever opens it closes it.
	Open func(ctx context.Context, upstream, key string, era mcp.Era) jsonrpc.Conn

	// Relates reports whether the Related of what a legacy upstream sends is
	// certain, as it is over HTTP, and not a guess. Nil: of none.
	Relates func(upstream string) bool

	Idle    time.Duration // without use, of a legacy session that is kept for modern clients; zero means 5 min
	ParkFor time.Duration // for an answer to what a parked call asks; zero means 10 min

	Log *slog.Logger // nil discards

	pool pool
}

func (b *Bridge) logger() *slog.Logger {
	if b.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return b.Log
}

func (b *Bridge) relates(upstream string) bool { return b.Relates != nil && b.Relates(upstream) }

func (b *Bridge) idle() time.Duration    { return orElse(b.Idle, 5*time.Minute) }
func (b *Bridge) parkFor() time.Duration { return orElse(b.ParkFor, 10*time.Minute) }

func orElse(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// Stop ends what outlives the streams of modern clients: their listens with the
// result of a graceful end, and the pooled legacy sessions by closing their
// streams, so that each server ends as it wishes. When ctx is done it ends them by
// force, also after it has returned: it does so when nothing of the pool is left, and
// servers may still take their leave, for which whoever opened the streams waits
// (Host.Stop). Streams that are still served end on their own, and what they ask for
// is refused.
func (b *Bridge) Stop(ctx context.Context) { b.pool.stop(ctx) }
