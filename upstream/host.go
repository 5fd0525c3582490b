package upstream

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// A Host runs upstreams for the streams that attach to them. Its exported fields
// must not change after the first Attach, but for what Replace does.
type Host struct {
	Upstreams map[string]Upstream // by name
	Log       *slog.Logger        // nil discards
	Limits    jsonrpc.Limits      // of one message from an upstream

	spawner spawner
	wg      sync.WaitGroup // Attach, and the spawner's thread

	mu      sync.Mutex // guards the fields below, the claims in them, and Upstreams
	claims  map[claimID]*claim
	streams map[*stream]struct{} // with a server
	shared  sharedTable
}

// Known reports whether there is an upstream of that name.
func (h *Host) Known(name string) bool {
	_, ok := h.upstream(name)
	return ok
}

func (h *Host) upstream(name string) (Upstream, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	up, ok := h.Upstreams[name]
	return up, ok
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
	for _, name := range changed {
		if sh := h.shared.open[name]; sh != nil {
			h.wg.Go(func() { sh.stop(causeChanged) })
		}
	}
}

// Attach serves one stream: it starts the upstream of that name for the claim
// that key has on it, and passes messages until either ends. It owns c.
//
// Request ids on c must be unique for the life of the stream. When the upstream
// ends, c is closed with a [*jsonrpc.ClosedError], which is also returned; the
// next Attach with the same key starts it again, unless it failed too often: then
// Attach fails at once until its back-off is over. When c is closed, what is in
// flight is cancelled and the upstream stopped, which takes up to three times its
// StopGrace; the error is then an [jsonrpc.ErrClosed]. Cancelling ctx stops it all
// within a second.
//
// Attach returns when everything that it started is gone.
func (h *Host) Attach(ctx context.Context, upstream, key string, c jsonrpc.Conn) error {
	h.wg.Add(1)
	defer h.wg.Done()
	up, ok := h.upstream(upstream)
	switch {
	case !ok:
		return refuse(c, errors.New("no upstream of that name"))
	case up.Shared:
		return h.share(ctx, upstream, key, &up, c)
	}
	return h.attachAlone(ctx, claimID{upstream, key}, &up, c)
}

// attachAlone is Attach for a stream with a server of its own.
func (h *Host) attachAlone(ctx context.Context, id claimID, up *Upstream, c jsonrpc.Conn) error {
	if ctx.Err() != nil {
		return refuse(c, context.Cause(ctx))
	}
	log := h.logger().With("upstream", id.upstream, "session", short(id.key))
	cl, wait := h.attach(id)
	defer h.detach(cl)
	if wait != nil {
		log.Debug("upstream waits before its next start")
		return refuseFor(c, up.startCause(wait.Cause), wait)
	}
	s := newStream(ctx, h, cl, up, c, log)
	if err := s.server.start(); err != nil {
		inARow := h.ended(cl, startFailed, causeStartFailed, 0)
		defer tellFailure(log.With("cause", causeStartFailed, "err", err), startFailed, inARow)
		return refuse(c, err)
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

func refuseFor(c jsonrpc.Conn, cause string, err error) error {
	end := &jsonrpc.ClosedError{Cause: cause, Err: err}
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
