package upstream

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/pool"
)

// A Host runs upstreams for the streams that attach to them. Its exported fields
// must not change after the first Attach, but for what Replace does.
type Host struct {
	Upstreams map[string]Upstream // by name
	Log       *slog.Logger        // nil discards
	Limits    jsonrpc.Limits      // of one message from an upstream

	// Bridge serves streams of the era that an upstream does not speak. Nil
	// refuses them.
	Bridge Bridge

	// ClientsOperate is whether every client is whoever runs the Host: then the
	// error about a Command that did not start has its last line on stderr.
	ClientsOperate bool

	wg sync.WaitGroup // Attach, and what Stop waits for besides

	mu        sync.Mutex // guards the fields below, the claims in them, and Upstreams
	claims    map[claimID]*claim
	eras      map[string]*eras     // by upstream
	streams   map[*stream]struct{} // with a server
	losses    map[string]*loss     // by upstream
	sharing   *pool.Shared         // servers that many streams share; see pool
	probes    context.Context      // of remote servers that are asked for their era
	endProbes context.CancelFunc
	stopped   bool
}

// Known reports whether there is an upstream of that name.
func (h *Host) Known(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.Upstreams[name]
	return ok
}

// Replace makes upstreams, which must not change any more, the ones to attach to.
// Streams on those that are named as changed, since they are gone or something else
// now, end with the cause "upstream changed"; all others notice nothing. It does not
// wait for that.
func (h *Host) Replace(upstreams map[string]Upstream, changed []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.Upstreams = upstreams
	for s := range h.streams {
		if slices.Contains(changed, s.claim.id.upstream) && s.claim.id.key != sharedKey {
			h.wg.Go(func() { s.end(causeChanged, nil) })
		}
	}
	for id, cl := range h.claims {
		if slices.Contains(changed, id.upstream) {
			cl.reset() // what failed was another
		}
	}
	h.poolLocked().End(changed, causeChanged)
	for _, name := range changed {
		delete(h.eras, name)
	}
}

// Attach serves one stream of a client of that era: it starts the upstream of that
// name for the claim that key has on it, and passes messages until either ends. It
// owns c.
//
// An upstream that speaks the other era alone is left to the Bridge. Before that is
// known of it, a legacy stream may end with [jsonrpc.CauseOtherEra].
//
// Request ids on c must be unique for the life of the stream. When the upstream
// ends, c is closed with a [*jsonrpc.ClosedError], which is also returned; the
// next Attach with the same key starts it again, unless it failed too often: then
// Attach fails at once until its back-off is over. When c is closed, what is in
// flight is cancelled and the upstream stopped, which takes up to three times its
// StopGrace; the error is then an [jsonrpc.ErrClosed]. Cancelling ctx stops it all
// within a second. After [Host.Stop] has begun Attach fails at once.
//
// Attach returns when everything that it started is gone.
func (h *Host) Attach(ctx context.Context, upstream, key string, era mcp.Era, c jsonrpc.Conn) error {
	if !h.begin() {
		return refuseFor(c, causeHostStopped, errStops)
	}
	defer h.wg.Done()
	t, ok := h.target(upstream)
	if !ok {
		return refuseFor(c, causeChanged, errNoUpstream)
	}
	speaks, err := h.eraFor(ctx, t, era)
	switch {
	case err != nil:
		return refuseFor(c, causeLost, h.notAsked(t, err))
	case speaks == era:
		return h.attachIn(ctx, t, claimID{upstream, key, era}, c)
	case h.Bridge == nil:
		return refuseFor(c, causeWrongEra, errors.New("there is no bridge between the eras"))
	case era == mcp.Modern:
		return h.Bridge.Modern(ctx, upstream, key, c)
	}
	return h.Bridge.Legacy(ctx, upstream, key, c)
}

// begin counts in what Stop waits for, unless that has begun.
func (h *Host) begin() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return false
	}
	h.wg.Add(1)
	return true
}

// errNoUpstream is for a proxy that has not heard yet that the upstream is gone.
var errNoUpstream = errors.New("no upstream of that name")

// Open returns a stream to an upstream, attached as by Attach in an era that it
// must speak. Cancelling ctx ends it at once; [Host.Stop] waits for it.
func (h *Host) Open(ctx context.Context, upstream, key string, era mcp.Era) jsonrpc.Conn {
	near, far := jsonrpc.Pipe()
	if !h.begin() {
		_ = refuseFor(far, causeHostStopped, errStops)
		return near
	}
	go h.attachOpened(ctx, upstream, key, era, far)
	return near
}

// attachOpened attaches a stream from Open. What it returns near.Recv says, too.
func (h *Host) attachOpened(ctx context.Context, upstream, key string, era mcp.Era, far jsonrpc.Conn) {
	defer h.wg.Done()
	t, ok := h.target(upstream)
	if !ok {
		_ = refuseFor(far, causeChanged, errNoUpstream)
		return
	}
	_ = h.attachIn(ctx, t, claimID{upstream, key, era}, far)
}

// attachIn is Attach in an era that the upstream speaks, or that it is tried in.
func (h *Host) attachIn(ctx context.Context, t target, id claimID, c jsonrpc.Conn) error {
	if t.up.together(id.era) {
		return h.share(ctx, t, id, c)
	}
	return h.attachAlone(ctx, attachment{target: t, id: id}, c)
}

// An attachment is what a stream with a server of its own is attached to.
type attachment struct {
	target
	id    claimID
	trial func() bool // whether it is open that the server speaks the era; nil: it is not
}

// attachAlone is attachIn for a stream with a server of its own.
func (h *Host) attachAlone(ctx context.Context, a attachment, c jsonrpc.Conn) error {
	if ctx.Err() != nil {
		return refuse(c, context.Cause(ctx))
	}
	log := h.logger().With("upstream", a.name, "session", short(a.id.key))
	cl, wait := h.attach(a.id)
	defer h.detach(cl)
	if wait != nil {
		log.Debug("upstream waits before its next start")
		wait.Says, wait.Cause = wait.Words(), a.up.startCause(wait.Cause)
		return refuseFor(c, causeStartFailed, wait)
	}
	s := newStream(ctx, h, cl, a, c, log)
	if err := s.start(); err != nil {
		end := jsonrpc.EndOf(err, causeStartFailed)
		inARow := h.ended(cl, startFailed, end, 0)
		defer tellFailure(log.With("cause", end.Cause, "event", end.Event, "err", end.Err), startFailed, inARow)
		return refuseFor(c, causeStartFailed, end)
	}
	h.enter(s)
	defer h.leave(s)
	return s.serve()
}

// short returns enough of a key to tell clients apart in a log, and too little to
// be one.
func short(key string) string { return key[:min(len(key), 8)] }

// refuse ends a stream of which nothing was read.
func refuse(c jsonrpc.Conn, err error) error { return refuseFor(c, causeStartFailed, err) }

// refuseFor is refuse with the cause of an err that has none.
func refuseFor(c jsonrpc.Conn, cause string, err error) error {
	end := jsonrpc.EndOf(err, cause)
	end.Delivered, end.Event = false, cmp.Or(end.Event, jsonrpc.NewEvent())
	jsonrpc.CloseWith(c, end)
	return end
}

func (h *Host) logger() *slog.Logger {
	if h.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return h.Log
}

func (h *Host) enter(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s.claim.current = s
	if h.streams == nil {
		h.streams = make(map[*stream]struct{})
	}
	h.streams[s] = struct{}{}
}

func (h *Host) leave(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, s)
}
