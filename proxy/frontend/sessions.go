package frontend

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc/wsconn"
)

// openSessions are all connections of clients over HTTP: sessions, WebSockets, and the connections
// of principals. It bounds their number, ends them and waits for them.
type openSessions struct {
	// Static after construction.
	serve      func(ctx context.Context, who *identity.Identity, upstream string, c jsonrpc.Conn) error // HTTP.Serve
	admit      func(who *identity.Identity) (leave func(), refusal *identity.Refusal)                   // HTTP.Admit
	guard      *Guard
	max        int
	idle, gone time.Duration
	backlog    *backlog
	slots      *bodySlots
	newID      func() string // of a session
	digest     func() string // of the configuration; nil: sessions do not move
	keeper     *keeper       // nil likewise

	// disowned reports whether the key that signed an id was taken away, which ends its session: nobody finds it, and it
	// expires. nil: never.
	disowned  func(id string) bool
	log       *slog.Logger
	ctx       context.Context // of all sessions
	cancel    context.CancelCauseFunc
	directory *directory
	departure departure

	wg        sync.WaitGroup // one for each that has not left
	mu        sync.Mutex     // guards the fields below; it may be taken under that of the directory
	draining  bool
	counted   int // number of open connections
	uncounted int // open connections of sessions that have moved here; max does not bound them
}

const shuttingDown = "the proxy is shutting down"

// enter makes room for one more connection of who. The caller passes leave to run. If there is no
// room it answers the request, with 503 or the refusal of HTTP.Admit, and returns nil.
func (o *openSessions) enter(w http.ResponseWriter, r *http.Request, who *identity.Identity) (leave func()) {
	if !o.count(w) {
		return nil
	}
	if o.admit == nil {
		return o.leave
	}
	left, refusal := o.admit(who)
	if refusal != nil {
		o.leave()
		o.guard.Refuse(w, r, refusal)
		return nil
	}
	return func() {
		left() // Close waits for it
		o.leave()
	}
}

// count counts one more connection. If there are too many it answers 503 and returns false.
func (o *openSessions) count(w http.ResponseWriter) bool {
	o.mu.Lock()
	draining, full := o.draining, o.counted-o.uncounted >= o.max
	if !draining && !full {
		o.counted++
		o.wg.Add(1)
	}
	o.mu.Unlock()
	switch {
	case draining:
		unavailable(w, shuttingDown)
	case full:
		unavailable(w, "too many sessions")
	default:
		return true
	}
	return false
}

// leave undoes count.
func (o *openSessions) leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counted--
	o.wg.Done()
}

// run runs serve for a connection that has entered.
func (o *openSessions) run(log *slog.Logger, c jsonrpc.Conn, leave func(), serve func(context.Context) error) {
	defer leave()
	log.Debug("session opened")
	err := serve(o.ctx)
	c.Close()
	log.Debug("session ended", "cause", jsonrpc.CauseOf(err))
}

// serveWS is the goroutine of a client on a WebSocket. It ends with the client's proof, because a
// WebSocket cannot carry a new one.
func (o *openSessions) serveWS(from caller, ws *wsconn.Conn, leave func()) {
	c := &socket{Conn: ws, by: from}
	c.backlog = streamBacklog{of: o.backlog.join(from.who.Principal), cut: c.cut}
	log := o.log.With("transport", c.Transport(), "upstream", from.upstream, "principal", from.who.String())
	o.run(log, c, leave, func(ctx context.Context) error {
		serving, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		stop := o.guard.onEnd(ctx, from.who, func(why *jsonrpc.ClosedError) {
			// Before cancel, whose effects would close it without a reason.
			c.CloseAs(wsconn.PolicyViolation, why.Cause.String())
			cancel(why)
		})
		defer stop()
		err := o.serve(serving, from.who, from.upstream, c)
		c.Close()
		c.backlog.add(-c.backlog.size())
		o.backlog.leave(from.who.Principal)
		return err
	})
}

// session returns a new session for a caller who has entered.
func (o *openSessions) session(from caller) *httpSession {
	return o.newSession(o.newID(), from)
}

func (o *openSessions) newSession(id string, from caller) *httpSession {
	s := newHTTPSession(id, from, o.backlog.join(from.who.Principal))
	s.onEnd = func() { o.directory.remove(s, !s.stopped() && o.ctx.Err() == nil) } // else another replica may continue it
	if o.digest != nil {
		s.said, s.moving, s.changes = new(saidOnce), &o.departure.begun, o.directory.changes
		s.idle.freed = func() { o.departure.mayMove(s) }
	}
	return s
}

// begin begins a session that has entered. The caller must release it.
func (o *openSessions) begin(s *httpSession, leave func()) {
	s.idle.hold()
	o.directory.add(s)
	o.start(s, leave)
}

// start starts a session. Its onEnd must be set.
func (o *openSessions) start(s *httpSession, leave func()) {
	if !s.sse {
		s.idle.start(o.idle, o.gone, s.expire)
	}
	go o.serveSession(s, leave)
}

// serveSession is the goroutine of a session.
func (o *openSessions) serveSession(s *httpSession, leave func()) {
	log := o.log.With("transport", "http", "upstream", s.of.upstream, "principal", s.of.who.String(),
		"http_session", shortID(s.id)) // the router logs a session of its own
	o.run(log, s, leave, func(ctx context.Context) error {
		if s.sse { // whose stream cannot carry a new proof; serve still answers what is in flight
			good, stop := o.guard.whileGood(ctx, s.of.who)
			defer stop()
			ctx = good
		}
		err := o.serve(ctx, s.of.who, s.of.upstream, s)
		s.Close()
		s.queued.add(-s.queued.size())
		o.backlog.leave(s.of.who.Principal)
		if dropped := s.dropped(); dropped > 0 {
			log.Warn("client did not fetch its messages, oldest dropped", "dropped", dropped)
		}
		return err
	})
}

// shortID returns the part of a session's id that the log has. Ids that begin alike and then have a
// dot are of one replica.
func shortID(id string) string {
	if _, own, ok := strings.Cut(id, "."); ok {
		id = own
	}
	return id[:min(8, len(id))]
}

// stopped reports whether the session has ended because no other replica took it.
func (s *httpSession) stopped() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Is(s.in.Err(), errStopped)
}

// find returns the session with this id and holds it; nil if it has ended, or belongs to another
// principal or path. It waits while the session is being moved, until ctx ends.
func (o *openSessions) find(ctx context.Context, id string, from caller, sse bool) *httpSession {
	if o.disowned != nil && o.disowned(id) {
		return nil
	}
	for {
		s, frozen := o.lookUp(id, from)
		switch {
		case s == nil && frozen == nil, s != nil && (s.of.connKey() != from.connKey() || s.sse != sse):
			return nil
		case s != nil:
			var held bool
			if held, frozen = s.hold(); held {
				return s
			}
		}
		if frozen == nil {
			return nil
		}
		select {
		case <-frozen:
		case <-ctx.Done():
			return nil
		}
	}
}

// lookUp returns the session with this id, nil for none. It begins one that has moved here. frozen is not
// nil if the session has not begun and is being moved on.
func (o *openSessions) lookUp(id string, from caller) (s *httpSession, frozen <-chan struct{}) {
	s, begun, frozen := o.directory.find(id, from.connKey(), func(r *record) *httpSession {
		s := o.newSession(id, from)
		s.resume(r, from, r.Digest != o.digest())
		o.countMoved(1)
		return s
	})
	if begun {
		o.start(s, o.entered(from))
	}
	return s, frozen
}

// countMoved counts one more session that has moved here if n is 1, which is open then, and one less if n is -1, which
// leave must follow. They do not count against the bounds, since they were admitted elsewhere.
func (o *openSessions) countMoved(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.uncounted += n
	if n > 0 {
		o.counted++
		o.wg.Add(1)
	}
}

// entered returns the leave of a session that has moved here.
func (o *openSessions) entered(from caller) (leave func()) {
	left := func() {}
	if o.admit != nil {
		if admitted, refusal := o.admit(from.who); refusal == nil {
			left = admitted
		}
	}
	return func() {
		left()
		o.countMoved(-1)
		o.leave()
	}
}

// hold prevents expiry, and that the session is moved, until it is released. It returns false if the
// session has ended or is being moved, for which frozen is not nil.
func (s *httpSession) hold() (held bool, frozen <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.frozen != nil {
		return false, s.frozen
	}
	return s.idle.holdLocked(), nil
}

func (o *openSessions) drain() {
	o.directory.leave()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.draining = true
}

func (o *openSessions) isDraining() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.draining
}

// close ends all sessions and waits for them.
func (o *openSessions) close() {
	o.drain()
	o.directory.close()
	o.cancel(errStopped)
	o.wg.Wait()
}
