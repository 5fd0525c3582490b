package session

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
)

// flushTimeout bounds the last writes to a client that is being closed, so that a client
// that does not read cannot delay the end.
const flushTimeout = time.Second

// newSession returns a session without upstreams. inFlight bounds its open requests.
func newSession(p *Router, who *identity.Identity, c jsonrpc.Conn, key string, inFlight int) *session {
	s := &session{router: p, key: key, clientIdentity: clientIdentity{who: who, name: who.String(), account: who.Account()}, conn: c, began: time.Now(), ended: make(chan struct{})}
	if c, ok := c.(interface{ Transport() string }); ok {
		s.transport = c.Transport()
	}
	if c, ok := c.(interface{ Resumed() string }); ok {
		s.resumed = c.Resumed()
	}
	headers, user := forwardedBy(c)
	s.forwarded, s.owner = headers, ownerOf(who, user)
	s.subscriptions.Most, s.subscriptions.EarlyBytes, s.subscriptions.AcceptWithin = max(inFlight/4, 1), p.queueBytes(), p.maxStart()
	s.log = p.logger().With("session", s.key[:8]) // hosts shorten it in the same way
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.client = peer.New(peer.Options{
		Requests: inFlight, Room: jsonrpc.Room{Messages: clientMessages, Bytes: clientBytes, Told: waits(c)}, OneWay: -1,
		Ready: s.ready, Array: s.batch, Begin: s.begin, Request: s.request, Refuse: s.refuse, Cancelled: s.cancelled,
		Notified: func(m *jsonrpc.Message, _ *peer.Call) { s.notified(m) },
		Progress: s.clientProgress, Invalid: s.invalid, HalfClosed: s.halfClose,
		Dropped: func(m *jsonrpc.Message) { s.drop("answer to an unknown server request", m) },
		Minted:  asked(c),
	})
	s.lists.Options = lists.Options{
		Memory: &p.memory, Catalog: &p.Catalog, CatalogAge: p.CatalogAge, ListTimeout: p.listTimeout(), MaxBytes: p.queueBytes(),
		Context: s.ctx, Goroutines: &s.wg, Grant: s.grant, Tell: s.tell,
	}
	s.surroundings = surroundings{
		client: s, clientReady: &s.handshake.ready, subscriptions: &s.subscriptions, sessionLists: &s.lists,
		session: s.id(), sessionLog: s.log, sessionCtx: s.ctx, began: s.began, wg: &s.wg,
		forwarded: s.forwarded, try: p.try, renew: p.renew, hooks: &p.Hooks, limited: p.Policies != nil, maxBytes: p.queueBytes(),
	}
	s.upstreams.s = s
	s.resourceSubs.Kept = &s.kept
	s.upstreams.hold(&configured{complete: true, settled: true})
	return s
}

// waits returns the function of c that counts the bytes waiting for the client; nil for none.
func waits(c jsonrpc.Conn) func(bytes int) {
	if counts, ok := c.(interface{ Waits(bytes int) }); ok {
		return counts.Waits
	}
	return nil
}

// asked returns the counter of the questions to the client of c. If c has said how many there were
// before this session, it goes on from there.
func asked(c jsonrpc.Conn) *atomic.Int64 {
	n := new(atomic.Int64)
	if c, ok := c.(interface{ Asked() int64 }); ok {
		n.Store(c.Asked())
	}
	return n
}

// forwardedBy returns the headers for upstreams in the request with which c began, nil for none, and a
// digest of those that say who the user is, "" without any.
func forwardedBy(c jsonrpc.Conn) (headers *jsonrpc.Forwarded, user string) {
	if c, ok := c.(interface {
		Forwarded() (headers *jsonrpc.Forwarded, user string)
	}); ok {
		return c.Forwarded()
	}
	return nil, ""
}

// ownerOf returns who owns what upstreams give to a user of a principal.
func ownerOf(who *identity.Identity, user string) identity.Principal {
	owner := who.Principal
	if user != "" {
		owner.Name += "\x00" + user
	}
	return owner
}

// Serve runs the session of one client with all upstreams, or with the named one, whose names stay
// bare. who is the sender of all messages without one. Serve owns c until it returns, and closes
// it. It returns the cause of the end, which satisfies errors.Is(err, [jsonrpc.ErrClosed]). If ctx
// ends, open requests are settled with the connection-closed error first. An empty upstream means
// all; an unknown one ends the session at once.
func (p *Router) Serve(ctx context.Context, who *identity.Identity, upstream string, c jsonrpc.Conn) error {
	_, user := forwardedBy(c)
	return p.serveWith(ctx, upstream, newSession(p, who, c, p.connectionKey(who, user), p.inFlight()))
}

// ServePrincipal is Serve for all modern HTTP clients with the same principal. All messages must
// have that sender. Its key is always the same in this process, so that hosts keep the principal's
// state. It allows four times as many requests at a time as the session of one client.
func (p *Router) ServePrincipal(ctx context.Context, who identity.Principal, upstream string, c jsonrpc.Conn) error {
	_, user := forwardedBy(c)
	s := newSession(p, &identity.Identity{Principal: who}, c, p.principalKey(upstream, who, user), 4*p.inFlight())
	s.ofPrincipal, s.surroundings.forwarded = true, nil // each request has its own
	return p.serveWith(ctx, upstream, s)
}

func (p *Router) serveWith(ctx context.Context, upstream string, s *session) error {
	if upstream == "" {
		s.upstreams.follows = true
		return p.serve(ctx, s)
	}
	if up := p.current().named(upstream); up != nil {
		s.upstreams.hold(up.alone())
		return p.serve(ctx, s)
	}
	s.conn.Close()
	return jsonrpc.Closed(&jsonrpc.ClosedError{Cause: jsonrpc.CauseUnknownUpstream})
}

func (p *Router) serve(ctx context.Context, s *session) error {
	// An HTTP session ends when its client seems to have left, unless there is still work for it.
	if c, ok := s.conn.(interface{ KeepWhile(busy func() bool) }); ok {
		c.KeepWhile(s.tasks.HaveUnfinished)
	}
	p.mu.Lock()
	put(&p.sessions, s, struct{}{})
	draining := p.draining
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.sessions, s)
		p.mu.Unlock()
	}()
	s.follow() // after the session is registered, so that it misses no Update
	if draining && !s.moves() {
		s.startDrain()
	}
	return s.serve(ctx)
}

// Shutdown drains all sessions: each refuses new requests, and ends when its last request is
// settled. It returns when all have ended or ctx ends. Sessions that are left end when the ctx of
// their Serve does.
func (p *Router) Shutdown(ctx context.Context) {
	p.mu.Lock()
	p.draining = true
	p.mu.Unlock()
	sessions := p.running()
	defer p.Catalog.Save()
	defer p.trials.end()
	for _, s := range sessions {
		if !s.moves() {
			s.startDrain()
		}
	}
	for _, s := range sessions {
		select {
		case <-s.ended:
		case <-ctx.Done():
			return
		}
	}
}

// patience is how long a client may send requests without reading answers.
const patience = time.Second

// ready waits for spare room before a message of the client is handled, because a client may
// briefly ask faster than it reads. A client that does not read at all is ended.
func (s *session) ready(wait bool) bool {
	if s.client.Roomy(clientSpare) {
		return true
	}
	if !wait {
		return false
	}
	timer := time.AfterFunc(patience, func() { s.cancel(jsonrpc.Closed(errors.New("the client does not read"))) })
	defer timer.Stop()
	s.client.Wait(clientSpare)
	return true
}

// invalid returns the answer to an unusable message.
func (s *session) invalid(bad *jsonrpc.InvalidError) *jsonrpc.Message {
	s.log.Debug("unusable message from client", "err", bad)
	return bad.Answer(s.client.Request(bad.ID) != nil)
}

// LogClientLeft is the log message for the end of a session.
const LogClientLeft = "client disconnected"

// serve runs the session until it ends.
func (s *session) serve(ctx context.Context) error {
	s.log.Debug("client connected")
	s.observeBegan()
	defer close(s.ended)
	stop := context.AfterFunc(ctx, func() { s.cancel(jsonrpc.Closed(context.Cause(ctx))) })
	defer stop()

	running, force := context.WithCancel(context.Background())
	over := make(chan struct{})
	context.AfterFunc(s.ctx, func() { defer close(over); s.end(force) })
	err := s.client.Run(running, s.tapped(s.conn))
	if !errors.Is(err, errDrained) {
		err = &goneError{err}
	}
	s.cancel(err) // unless it has ended already
	<-over
	s.client.End(err)
	s.wg.Wait()
	force()

	err = jsonrpc.Closed(context.Cause(s.ctx))
	s.observeEnded()
	log := s.log
	if s.who.Kind == identity.Anonymous && s.router.AnonymousLog != nil {
		log = s.router.AnonymousLog.With("session", s.id())
	}
	log.Info(LogClientLeft, "cause", jsonrpc.CauseOf(err), "dur", time.Since(s.began))
	return err
}

// end settles everything, and closes the client after its answers are written. The hosts notify the
// upstreams when the streams close. force ends whatever takes too long.
func (s *session) end(force func()) {
	cause := context.Cause(s.ctx)
	if isGone(cause) { // nobody reads: unblock writers that wait for room
		s.client.End(cause)
	}
	time.AfterFunc(flushTimeout, force)
	s.mu.Lock()
	s.phase = closing
	s.mu.Unlock()
	s.client.Drain(errDrained, flushTimeout) // first, so that later requests are refused
	calls := s.client.TakeRequests(nil)
	s.roots.flush(s)
	s.hangUp()
	for _, pr := range calls {
		r := pr.Value.(*request)
		r.abandon(r.takeUse())
		s.deliver(r, s.lastAnswer(r), r.Answer)
	}
}

// halfClose begins the drain after the client's last message. Server requests fail at once, because
// no answer can come.
func (s *session) halfClose() {
	s.mu.Lock()
	if s.phase < halfClosed {
		s.phase = halfClosed
	}
	s.subscriptions.End()
	s.mu.Unlock()
	s.endStreams()
	for _, c := range s.client.TakeCalls(nil) {
		c.Value.(*serverRequest).resumeTimers()
		c.For.Refuse(peer.ErrClientGone)
	}
	s.client.Drain(errDrained, math.MaxInt64)
	s.wg.Go(s.drainTimeout)
}

// moves reports whether the Conn ends by itself, because another process goes on with its client. Until
// then it is served.
func (s *session) moves() bool {
	c, ok := s.conn.(interface{ Moves() bool })
	return ok && c.Moves()
}

// startDrain refuses new requests and ends the session when all open ones are settled.
// Subscriptions and streams of events are settled at once.
func (s *session) startDrain() {
	s.mu.Lock()
	if s.phase == open {
		s.phase = draining
		s.subscriptions.End()
	}
	s.mu.Unlock()
	s.endStreams()
	s.client.Drain(errDrained, math.MaxInt64)
}

// endStreams ends the streams of events with their results, because they would delay the end of the
// session, as subscriptions would.
func (s *session) endStreams() {
	for _, pr := range s.client.TakeRequests(func(pr *peer.Request) bool { return pr.Method == mcp.MethodEventsStream }) {
		r := pr.Value.(*request)
		use := r.takeUse()
		if c := r.call(); c != nil {
			c.giveUp(use, mcp.Cancellation(c.ID, "the session ends"))
		} else {
			r.abandon(use)
		}
		s.deliver(r, r.over(r.upstreams), r.Answer)
	}
}

// drainTimeout ends a half-closed session whose requests take too long.
func (s *session) drainTimeout() {
	timer := time.NewTimer(s.router.drain())
	defer timer.Stop()
	select {
	case <-timer.C:
		s.cancel(errDrained)
	case <-s.ctx.Done():
	}
}

// hangUp hangs up all upstreams. Those of earlier upstream sets already are.
func (s *session) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.upstreams.conns() {
		u.hangUp(jsonrpc.Cause{})
	}
}

// connectionKey returns the hosts' key for one connection. It is unguessable, and shows which
// connections belong to the same principal and user.
func (p *Router) connectionKey(who *identity.Identity, user string) string {
	return mcp.ConnectionKey(rand.Text(), p.word(withUser(user, who.Key())...))
}

// principalKey returns the key of a principal and user with an upstream, "" for all. It is unguessable, too,
// and says nothing about the principal, except that it may return.
func (p *Router) principalKey(upstream string, who identity.Principal, user string) string {
	return mcp.PrincipalKey(p.word(withUser(user, upstream, who.Key())...), p.word(withUser(user, who.Key())...), p.ID)
}

// withUser returns the parts of a word about a user that headers tell apart from others with the
// same principal; user is "" for nobody.
func withUser(user string, parts ...string) []string {
	if user == "" {
		return parts
	}
	return append(parts, "user", user)
}

// word returns a word that depends on the secret and on the parts, which must not contain NUL.
func (p *Router) word(parts ...string) string {
	p.mu.Lock()
	if p.secret == "" {
		p.secret = rand.Text()
	}
	mac := hmac.New(sha256.New, []byte(p.secret))
	p.mu.Unlock()
	mac.Write([]byte(strings.Join(parts, "\x00")))
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(mac.Sum(nil)[:16])
}
