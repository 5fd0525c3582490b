package proxy

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// A localLink is the link within the process, to what runs here.
type localLink struct {
	client link.Client
	host   *hosting
	log    *slog.Logger
	hooks  observe.Hooks   // of which Happened is called
	ctx    context.Context // of the link; set by start
	wg     sync.WaitGroup  // both ends
}

func newLocalLink(cfg *config.Config, host *hosting, o Options) *localLink {
	l := &localLink{host: host, log: o.Log, hooks: o.Hooks}
	l.client = link.Client{
		Log: o.Log, Limits: limitsOf(cfg), Trusted: true, Streams: host.streams(len(cfg.Upstreams)), Lost: l.lost,
	}
	return l
}

// start keeps the link up until ctx ends.
func (l *localLink) start(ctx context.Context) {
	l.ctx = ctx
	l.wg.Go(func() { l.keep(ctx) })
}

// lost tells of the end of a link.
func (l *localLink) lost(event string, err error) {
	if tell := l.hooks.Happened; tell != nil && l.ctx.Err() == nil {
		tell(linkEvent(event, "the link within the process was lost", err, time.Time{}))
	}
}

// keep keeps the link up until ctx ends. Nothing that clients do ends it: if it ends
// all the same, its streams do, and there is another.
func (l *localLink) keep(ctx context.Context) {
	for ctx.Err() == nil {
		near, far := link.Ring()
		l.wg.Go(func() { l.host.server.Serve(l.host.forced, far) }) // ends for the same reason
		if err := l.client.Serve(ctx, near); ctx.Err() == nil {
			l.log.Error("link within the process lost", "err", err)
			select {
			case <-time.After(pauseBefore):
			case <-ctx.Done():
			}
		}
	}
}

// pauseBefore another link is less than openings of streams wait for it.
const pauseBefore = 100 * time.Millisecond

func (l *localLink) wait() { l.wg.Wait() }
