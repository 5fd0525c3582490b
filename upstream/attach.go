package upstream

import (
	"cmp"
	"context"
	"errors"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/upstream/shared"
)

// Attach attaches one stream of a client of this era: it starts a server of the upstream for
// the key, and passes messages until either side ends. It owns c.
//
// At the end it calls over, once, when everything that it started is gone; no goroutine waits for
// that while the stream is idle. It returns as soon as the stream is attached, but may wait for a
// start before, and over may come first. While a Bridge serves the stream, it does not return.
//
// If the upstream speaks only the other era, the Bridge serves the stream. If this turns
// out before the upstream has answered anything, the stream moves to the Bridge with the
// messages that c has sent.
//
// Request ids on c must be unique for the life of the stream. When the server ends, c is
// closed with a [*jsonrpc.ClosedError], which over gets, too. The next Attach with the
// same key starts a new server, or fails at once during the back-off after several
// failures. When c is closed, its requests are cancelled and the server is stopped, which
// takes up to three times its StopGrace; the error is then an [jsonrpc.ErrClosed].
// Cancelling ctx stops everything within a second. After [Host.Stop] has begun, Attach
// fails at once.
func (h *Host) Attach(ctx context.Context, upstream, key string, era mcp.Era, c jsonrpc.Conn, over func(error)) {
	if !h.begin() {
		over(jsonrpc.Refuse(c, jsonrpc.CauseHostStopped, errStops))
		return
	}
	end := func(err error) {
		h.wg.Done()
		over(err)
	}
	t, ok := h.target(upstream)
	id := serverID{upstream, key, era}
	switch {
	case !ok:
		end(jsonrpc.Refuse(c, jsonrpc.CauseChanged, errNoUpstream))
		return
	case t.eras.only != "":
		h.attachKnown(ctx, t, id, c, end)
		return
	}
	var moved error
	k := newKeptStream(c, era)
	k.next = func(c jsonrpc.Conn) {
		if era == mcp.Legacy { // whether the server refuses this era, or has no sessions in it
			moved = h.bridge(ctx, t, id, c)
			return
		}
		moved = untilOver(func(over func(error)) { h.attachKnown(ctx, t, id, c, over) })
	}
	k.stay = func(end *jsonrpc.ClosedError) { h.tellOtherEra(id, end) }
	h.attachKnown(ctx, t, id, k, func(err error) {
		k.wg.Wait()
		end(cmp.Or(moved, err))
	})
}

// untilOver waits until what begin begins is over, and returns its error.
func untilOver(begin func(over func(error))) error {
	over := make(chan error, 1)
	begin(func(err error) { over <- err })
	return <-over
}

// attachKnown is Attach with the present knowledge of the upstream's eras.
func (h *Host) attachKnown(ctx context.Context, t target, id serverID, c jsonrpc.Conn, over func(error)) {
	speaks, err := t.eras.speaksTo(ctx, id.era)
	switch {
	case err != nil && t.up.Command == nil:
		over(jsonrpc.Refuse(c, jsonrpc.CauseConnectionLost, h.failures.cannotAsk(t.name, err)))
	case err != nil:
		over(jsonrpc.Refuse(c, jsonrpc.CauseConnectionLost, err))
	case speaks == id.era:
		h.attachIn(ctx, t, id, c, over)
	default:
		over(h.bridge(ctx, t, id, c))
	}
}

// bridge lets the Bridge serve a stream, because the upstream speaks the other era. It returns at the end.
func (h *Host) bridge(ctx context.Context, t target, id serverID, c jsonrpc.Conn) error {
	switch {
	case h.Bridge == nil:
		return jsonrpc.Refuse(c, jsonrpc.CauseWrongEra, errors.New("there is no bridge between the eras"))
	case !h.isCurrent(t):
		return jsonrpc.Refuse(c, jsonrpc.CauseChanged, errReplaced)
	case id.era == mcp.Modern:
		return h.Bridge.Modern(ctx, t.name, id.key, c)
	}
	return h.Bridge.Legacy(ctx, t.name, id.key, c)
}

// isCurrent reports whether an upstream was neither removed nor replaced since target, while the stream may have waited for
// a probe. The Bridge and the shared servers would let it reach what has replaced it, as they know upstreams by their
// names, and a server of its own would outlive Replace.
func (h *Host) isCurrent(t target) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.eras[t.name] == t.eras
}

// begin adds to wg. It returns false if Stop has begun.
func (h *Host) begin() bool {
	h.once.Do(h.init)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopping.Err() != nil {
		return false
	}
	h.wg.Add(1)
	return true
}

// Reasons to refuse a stream.
var (
	errStops      = errors.New("the host stops")
	errNoUpstream = errors.New("no upstream of that name") // removed, and the announcement is still on its way
	errReplaced   = errors.New("it was changed meanwhile")
)

// Open returns a stream to an upstream, attached as by Attach. The upstream must speak the
// era. Cancelling ctx ends the stream at once. The caller closes it, and [Host.Stop] waits
// for its end.
func (h *Host) Open(ctx context.Context, upstream, key string, era mcp.Era) jsonrpc.Conn {
	near, far := jsonrpc.Pipe()
	if !h.begin() {
		_ = jsonrpc.Refuse(far, jsonrpc.CauseHostStopped, errStops)
		return near
	}
	go h.attachOpened(ctx, upstream, key, era, far)
	return near
}

// attachOpened attaches a stream of Open, whose Recv returns the error.
func (h *Host) attachOpened(ctx context.Context, upstream, key string, era mcp.Era, far jsonrpc.Conn) {
	end := func(error) { h.wg.Done() }
	t, ok := h.target(upstream)
	if !ok {
		end(jsonrpc.Refuse(far, jsonrpc.CauseChanged, errNoUpstream))
		return
	}
	h.attachIn(ctx, t, serverID{upstream, key, era}, far, end)
}

// target returns the upstream of this name.
func (h *Host) target(name string) (target, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	up, ok := h.Upstreams[name]
	if !ok {
		return target{}, false
	}
	t := target{name, &up, h.eras[name]}
	if t.eras == nil {
		t.eras = &eraFinder{only: up.only(), wg: &h.wg}
		t.eras.probe = func(ctx context.Context) (modern, told bool, err error) { return h.probe(ctx, t) }
		h.eras[name] = t.eras
	}
	return t, true
}

// Modern reports whether an upstream speaks the modern era. If that is unknown it probes the
// upstream, and starts a process for that. [Host.Stop] ends a probe.
func (h *Host) Modern(ctx context.Context, upstream string) (bool, error) {
	if !h.begin() {
		return false, errStops
	}
	defer h.wg.Done()
	t, ok := h.target(upstream)
	switch {
	case !ok:
		return false, errNoUpstream
	case t.eras.only != "":
		return t.eras.only == mcp.Modern, nil
	}
	return t.eras.speaksModern(ctx, ctx.Done())
}

// OtherVersions returns the versions that an upstream has named when it refused to speak one of ours; nil for none.
func (h *Host) OtherVersions(upstream string) *mcp.VersionError {
	t, ok := h.target(upstream)
	if !ok {
		return nil
	}
	return t.eras.otherVersions()
}

// probe asks an upstream whether it speaks modern. It starts a process for that, and keeps
// it if it is modern. The headers in asker go with it. told is whether an answer decided the result.
func (h *Host) probe(asker context.Context, t target) (modern, told bool, err error) {
	if t.up.Command != nil {
		return h.servers.Try(h.shared(t))
	}
	if h.stopping.Err() != nil {
		return false, false, &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Err: errStops}
	}
	ctx, cancel := context.WithTimeout(jsonrpc.WithForwarded(h.stopping, jsonrpc.ForwardedIn(asker)), t.up.startTimeout())
	defer cancel()
	modern, err = t.up.Probe(ctx)
	return modern, true, err
}

// attachIn is Attach in an era that the upstream speaks, or may speak.
func (h *Host) attachIn(ctx context.Context, t target, id serverID, c jsonrpc.Conn, over func(error)) {
	if !h.isCurrent(t) {
		over(jsonrpc.Refuse(c, jsonrpc.CauseChanged, errReplaced))
		return
	}
	if t.up.together(id.era) {
		h.servers.Attach(ctx, h.shared(t), id.era, mcp.HolderOf(id.key), id.session(), c, over)
		return
	}
	h.attachAlone(ctx, t, id, nil, c, over)
}

// shared describes an upstream for package shared.
func (h *Host) shared(t target) shared.Upstream {
	return shared.Upstream{
		Name: t.name, Roots: t.up.Roots, Idle: t.up.IdleStop, Modern: t.up.only() == mcp.Modern, Misread: t.eras.misread,
		Serve: func(ctx context.Context, era mcp.Era, c jsonrpc.Conn, onTrial func() bool) error {
			if !h.isCurrent(t) { // Replace has come before there was a session to end
				return jsonrpc.Refuse(c, jsonrpc.CauseChanged, errReplaced)
			}
			return untilOver(func(over func(error)) {
				h.attachAlone(ctx, t, serverID{t.name, sharedKey, era}, onTrial, c, over)
			})
		},
	}
}

// unattributed tells the Bridge that a request of a shared upstream could not be attributed.
func (h *Host) unattributed(upstream string) {
	if h.Bridge != nil {
		h.Bridge.Unattributed(upstream)
	}
}

// attachAlone is attachIn for a stream with a server of its own. trial is as in stream.
func (h *Host) attachAlone(ctx context.Context, t target, id serverID, trial func() bool, c jsonrpc.Conn, over func(error)) {
	if ctx.Err() != nil {
		over(jsonrpc.Refuse(c, jsonrpc.CauseStartFailed, context.Cause(ctx)))
		return
	}
	log := h.logger().With("upstream", t.name, "session", id.session())
	r, wait := h.restarts.enter(id)
	left := func(err error) {
		r.leave()
		over(err)
	}
	if t.up.IdleStop > 0 {
		h.awaitStopped(ctx, id)
	}
	if wait != nil {
		log.Debug("upstream waits before its next start")
		wait.Says, wait.Cause = wait.Words(), t.up.startCause(wait.Cause)
		left(jsonrpc.Refuse(c, jsonrpc.CauseStartFailed, wait))
		return
	}
	s := newStream(ctx, t, id, c, log)
	s.trial, s.restart, s.failures, s.quotes = trial, r, &h.failures, h.ClientsOperate
	s.inFlight.watch = watchOf(&h.Hooks, id)
	r.tellStart()
	if err := s.start(&h.spares); err != nil {
		end := jsonrpc.EndOf(err, jsonrpc.CauseStartFailed)
		inARow := r.ended(startFailed, end, 0)
		r.commandFailed(end)
		r.tellEnd(startFailed, end, 0)
		if tell := h.Hooks.Happened; tell != nil {
			tell(r.happened(observe.ServerNotBegun, jsonrpc.Cause{}, end, inARow))
		}
		err := jsonrpc.Refuse(c, jsonrpc.CauseStartFailed, end)
		tellFailure(log.With("cause", end.Cause.String(), "event", end.Event, "err", end.Err), startFailed, inARow)
		left(err)
		return
	}
	h.enter(s)
	s.serve(func(err error) {
		h.leave(s)
		left(err)
	})
}

// awaitStopped waits until the servers of a key that are being stopped are gone. A client that
// needs its resting server at once must not find a file or port that the last one still uses.
func (h *Host) awaitStopped(ctx context.Context, id serverID) {
	h.mu.Lock()
	var stopping []*stream
	for s := range h.streams {
		if s.id == id && s.ends.Load() {
			stopping = append(stopping, s)
		}
	}
	h.mu.Unlock()
	for _, s := range stopping {
		select {
		case <-s.gone:
		case <-ctx.Done():
		}
	}
}

// enter adds a stream whose server was started. If Replace did not find it, it ends now.
func (h *Host) enter(s *stream) {
	s.restart.started(s.addStatus)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.streams[s] = struct{}{}
	if h.eras[s.name] != s.eras && s.id.key != sharedKey {
		h.wg.Go(func() { s.end(jsonrpc.CauseChanged, nil) })
	}
}

func (h *Host) leave(s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams, s)
	close(s.gone)
}
