package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
)

// A remoteLink is a link to a host elsewhere, and what that host has announced.
type remoteLink struct {
	config   config.Link
	log      *slog.Logger
	client   link.Client
	endpoint link.Endpoint // to dial; zero if the host dials us
	proof    credentials   // of endpoint, closed when the link is not wanted any more; nil: none

	// Set when the link is started: it is not wanted any more when ctx is done.
	ctx    context.Context
	hangUp context.CancelFunc

	// Guarded by links.mu.
	announced []announced          // last; kept while the link is lost
	rejected  []observe.Rejection  // those of them that are not offered
	known     bool                 // something was announced
	down      bool                 // lost since
	since     time.Time            // up, if it is
	failed    *jsonrpc.ClosedError // did not come up because of it, when that was tried last; nil: not tried yet
	lost      int                  // how often it was lost
}

// An announced is an upstream of a host elsewhere, or why it cannot be used.
type announced struct {
	session.Upstream
	err error
}

// dial is how the link comes up that is dialled from here.
func (f *remoteLink) dial() dialFunc {
	if f.proof != nil {
		return withTokenHint(f.endpoint.Dial, "the host, or a proxy in front of it, rejected our credentials of "+f.config.Key+".auth")
	}
	return withTokenHint(f.endpoint.Dial, "the host rejected our token: that in "+f.config.Key+".tokenFile must be the one in --token-file of the host")
}

// keepUp dials the host, again and again, until the link is not wanted any more.
func (f *remoteLink) keepUp() {
	_ = f.client.Redial(f.ctx, f.dial()) // it ends with its ctx
	if f.proof != nil {
		f.proof.Close()
	}
}

// endLocked is what became of the link, if it is not up.
func (f *remoteLink) endLocked() *jsonrpc.ClosedError {
	switch {
	case f.known:
		return &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost}
	case f.failed != nil:
		return f.failed
	}
	return &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Says: "has not connected yet (" + jsonrpc.CauseLinkLost.String() + ")"}
}

// dialFailure is why a link did not come up, without what only the log may have.
func dialFailure(err error) *jsonrpc.ClosedError {
	if end, ok := errors.AsType[*jsonrpc.ClosedError](err); ok { // of what proves who we are
		return &jsonrpc.ClosedError{Cause: end.Cause, Says: end.Says, Lasting: end.Lasting}
	}
	if status, ok := errors.AsType[*wsconn.StatusError](err); ok {
		end := &jsonrpc.ClosedError{Cause: jsonrpc.HTTPCause(status.Code)}
		end.Lasting = end.Cause.Kind == jsonrpc.KindRefused
		return end
	}
	cause := remote.CauseOf(err)
	if cause == jsonrpc.CauseRequestFailed {
		cause = jsonrpc.CauseConnectFailed
	}
	return &jsonrpc.ClosedError{Cause: cause, Says: "is unreachable: " + cause.String()}
}

// heartbeatOf is the heartbeat of links that ask so often.
func heartbeatOf(every time.Duration) link.Heartbeat {
	return link.Heartbeat{Every: every, Dead: 3 * every}
}

// A dialFunc makes a carrier for a link.
type dialFunc func(context.Context) (net.Conn, error)

// withTokenHint is dial, whose errors say what to do when the other side refuses the token.
func withTokenHint(dial dialFunc, hint string) dialFunc {
	return func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		if status, ok := errors.AsType[*wsconn.StatusError](err); ok && status.Code == http.StatusUnauthorized {
			err = fmt.Errorf("%w: %s", err, hint)
		}
		return c, err
	}
}

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
