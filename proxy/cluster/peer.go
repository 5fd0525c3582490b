package cluster

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

const (
	// dialTimeout is how long a member may take to accept a connection. It is less than the time in which a member is
	// declared dead.
	dialTimeout = 3 * time.Second

	// openTimeout is how long a request waits for a link that is being made, and its stream.
	openTimeout = 5 * time.Second

	// maxIdle is how many streams to a member wait for the next request, so that a burst opens few, and for how long.
	maxIdle     = 256
	idleTimeout = time.Minute
)

// Causes of the end of a link.
var (
	errGone    = errors.New("not a member any more")
	errStopped = errors.New("the cluster has ended")
	errSlow    = errors.New("the link was not made in time")
)

// A linkState is that of the link to a member.
type linkState int

const (
	linkIdle    linkState = iota // nobody has needed it
	linkDialled                  // being dialled for the first time
	linkUp
	linkDown // it was lost, or could not be made; it is being dialled again
	linkOver // the member is gone
)

// A peer is this process's link to another member: dialled when first needed, and again until the member is gone. It
// is an http.RoundTripper to that member.
type peer struct {
	// Static after construction.
	instance string
	client   *link.Client
	web      *http.Transport
	dial     func(ctx context.Context) (net.Conn, error) // a connection, and its TLS
	spawn    func(func()) bool                           // runs a goroutine; false: not now
	fell     func(event string, err error)               // is called when the link was lost or could not be made; nil for nobody

	ctx  context.Context // of the link
	stop context.CancelCauseFunc

	mu    sync.Mutex // guards the fields below
	state linkState
	up    context.Context // ends when the link that is up or being made is lost
	lost  context.CancelCauseFunc
}

func newPeer(instance string, log *slog.Logger, spawn func(func()) bool, dial func(ctx context.Context) (net.Conn, error)) *peer {
	p := &peer{instance: instance, dial: dial, spawn: spawn}
	p.ctx, p.stop = context.WithCancelCause(context.Background())
	p.up, p.lost = context.WithCancelCause(p.ctx)
	p.client = &link.Client{
		Log:       quiet(log).With("member", instance),
		Announced: func([]link.Upstream) { p.raise() },
		Lost:      p.fall,
		Failed:    func(err error) { p.fall("", err) },
	}
	p.web = &http.Transport{
		DialContext: p.open, DisableCompression: true, MaxIdleConns: maxIdle, MaxIdleConnsPerHost: maxIdle,
		IdleConnTimeout: idleTimeout, Protocols: new(http.Protocols),
	}
	p.web.Protocols.SetHTTP1(true)
	return p
}

// use begins to dial, if nobody has needed the link before. It reports whether a request may be sent: not while the
// link is down.
func (p *peer) use() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == linkIdle && p.spawn(p.keep) {
		p.state = linkDialled
	}
	return p.state == linkDialled || p.state == linkUp
}

// keep keeps up the link until the member is gone.
func (p *peer) keep() {
	_ = p.client.Redial(p.ctx, p.dial)
	p.web.CloseIdleConnections()
}

// raise records that the link is up.
func (p *peer) raise() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.state {
	case linkOver:
		return
	case linkDown:
		p.up, p.lost = context.WithCancelCause(p.ctx)
	}
	p.state = linkUp
}

// endOf returns the end of a link. Requests that wait for it fail with its event.
func endOf(event string, err error) error {
	return &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Delivered: true, Event: event, Err: err}
}

// fall records that the link was lost, with its event, or could not be made. Streams that are being opened fail.
func (p *peer) fall(event string, err error) {
	if event == "" {
		event = jsonrpc.NewEvent()
		err = endOf(event, err)
	}
	p.mu.Lock()
	before := p.state
	if before != linkOver {
		p.state = linkDown
		p.lost(err)
	}
	p.mu.Unlock()
	if p.fell != nil && (before == linkUp || before == linkDialled) {
		p.fell(event, err)
	}
}

// end ends the link, without waiting. What was sent on it has a second to arrive, unless the other end is dead.
func (p *peer) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = linkOver
	p.stop(err)
}

func (p *peer) now() linkState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// open opens a stream for HTTP. It fails as soon as the link does.
func (p *peer) open(ctx context.Context, _, _ string) (net.Conn, error) {
	p.mu.Lock()
	up := p.up
	p.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, openTimeout, errSlow)
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer context.AfterFunc(up, func() { fail(context.Cause(up)) })()
	return p.client.Dial(ctx)
}

// RoundTrip implements http.RoundTripper. Scheme and host of the URL do not matter.
func (p *peer) RoundTrip(r *http.Request) (*http.Response, error) {
	out := *r
	out.URL = &url.URL{Scheme: "http", Host: p.instance, Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery, Opaque: r.URL.Opaque}
	if out.Host == "" {
		out.Host = r.URL.Host
	}
	return p.web.RoundTrip(&out)
}

// quiet returns a logger for links, whose lines get level debug: what matters is a change of members, which is logged.
func quiet(log *slog.Logger) *slog.Logger { return slog.New(quietHandler{log.Handler()}) }

type quietHandler struct{ slog.Handler }

// Enabled implements slog.Handler.
func (h quietHandler) Enabled(ctx context.Context, _ slog.Level) bool {
	return h.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements slog.Handler.
func (h quietHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quietHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{h.Handler.WithGroup(name)}
}
