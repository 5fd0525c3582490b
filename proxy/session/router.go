package session

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A Dialer opens streams to upstreams, wherever they are.
type Dialer interface {
	// Dial opens a stream of an era to the named upstream. Streams with the same
	// key belong to one client. It must return soon after ctx is done. The end of
	// the returned Conn should be a [*jsonrpc.ClosedError].
	Dial(ctx context.Context, upstream, key string, era mcp.Era) (jsonrpc.Conn, error)
}

// The DialFunc type makes a function a [Dialer].
type DialFunc func(ctx context.Context, upstream, key string, era mcp.Era) (jsonrpc.Conn, error)

// Dial calls f.
func (f DialFunc) Dial(ctx context.Context, upstream, key string, era mcp.Era) (jsonrpc.Conn, error) {
	return f(ctx, upstream, key, era)
}

// A Keeper is a client's Conn that ends when its client seems to be gone, as an HTTP
// session does. It can ask whether anything still goes on for that client.
type Keeper interface {
	// KeepWhile gives it a function that reports whether a task is unfinished.
	KeepWhile(func() bool)
}

// An Upstream is what the router knows of one upstream server.
type Upstream struct {
	Name string // [A-Za-z0-9_-]{1,32} without "__"
	Link string // to its host; "" for one that runs here. Another host's is another upstream

	// Prefix comes before "__" in exposed names, whatever the Router's
	// Naming says; "" makes them bare, nil goes by Naming.
	Prefix *string

	StartTimeout   time.Duration // how long initialize may hold a client; zero means 30 s
	RequestTimeout time.Duration // without answer, progress or an open server request; zero means the client's own

	Allow, Deny []string // globs on original tool names; Deny wins; no Allow means all
}

// allows reports whether the client may see and call a tool.
func (u *Upstream) allows(tool string) bool { return catalog.Allows(u.Allow, u.Deny, tool) }

// Unknown are the upstreams behind a link that has never been up.
type Unknown struct {
	Link   string
	End    jsonrpc.ClosedError // of requests that only they could answer; its words follow the link's name
	Failed bool                // the link did not come up: nobody waits for it
}

// Limits bound a session.
type Limits struct {
	InFlight    int           // requests of one client at a time, of which a quarter may be subscriptions; zero means 1024
	MaxMessage  int           // bytes, for bounds on queues; zero means 16 MiB
	ListTimeout time.Duration // for a merged list, once for each upstream that is late; zero means 10 s
	Drain       time.Duration // for requests in flight after a half-close; zero means 5 s
	MaxStart    time.Duration // how long initialize may hold a client, whatever it waits for; zero means 8 s
}

// A Router serves clients from a set of upstreams. Its fields must not change
// once Serve, ServePrincipal or Update was called.
type Router struct {
	// Upstreams are served until Update names others; it is not looked at
	// after that. They are in config order, which is the order of merged lists.
	Upstreams []Upstream
	Dialer    Dialer
	Naming    catalog.Naming
	Version   string // of the program, in serverInfo

	// ID tells this Router from others that the same hosts serve, in the keys of
	// principals. Clients must not know it. It may be empty if the hosts serve no other.
	ID string

	// Several says that clients may be different principals. Then what an upstream gave to one,
	// be it a task or the state of a request, is unknown to the others. It may be set at any
	// time, and stays set: what was given out before is then unknown to all.
	Several atomic.Bool

	Limits

	Log *slog.Logger // nil discards

	// AnonymousLog is the log of sessions whose client has proved nothing; nil: Log has them.
	AnonymousLog *slog.Logger

	Hooks observe.Hooks
	Tap   observe.Tap // wraps Conns for operators; nil wraps none

	// Policies are what clients may; nil: everything. After their rules were replaced,
	// PoliciesReplaced has to be called.
	Policies *policy.Policies

	mu         sync.Mutex  // may be taken with a session's mu held, never the other way
	configured *configured // served now; nil if that is Upstreams
	sessions   map[*session]struct{}
	draining   bool
	secret     string // behind the keys of principals; made when first needed

	memory memory
}

// configured are the upstreams that a router serves at one time. It is immutable.
type configured struct {
	upstreams []Upstream
	prefixes  []string // of their exposed names, with the separator; "" for bare ones
	unknown   []Unknown
	complete  bool // there are no upstreams that are not known yet
	settled   bool // or none that are worth waiting for
}

func (p *Router) newConfigured(upstreams []Upstream, unknown []Unknown) *configured {
	complete := len(unknown) == 0
	s := &configured{
		upstreams: slices.Clone(upstreams), unknown: unknown, complete: complete,
		settled: !slices.ContainsFunc(unknown, func(u Unknown) bool { return !u.Failed }),
	}
	for i := range s.upstreams {
		up := &s.upstreams[i]
		s.prefixes = append(s.prefixes, p.Naming.Prefix(up.Name, up.Prefix, len(upstreams) > 1 || !complete))
	}
	return s
}

// named returns the upstream of a name, nil for none.
func (c *configured) named(name string) *Upstream {
	i := slices.IndexFunc(c.upstreams, func(u Upstream) bool { return u.Name == name })
	if i < 0 {
		return nil
	}
	return &c.upstreams[i]
}

// alone is one upstream as the only one, with bare names.
func (u *Upstream) alone() *configured {
	return &configured{upstreams: []Upstream{*u}, prefixes: []string{""}, complete: true, settled: true}
}

// Update replaces the upstreams. Their names must differ; their order is that of merged
// lists. It may be called at any time and does not wait. As long as a link among the
// unknown may come up, a client's initialize waits for the next Update, as for an upstream
// that is slow to start, and so does a list that nobody else can answer. An upstream that
// is known but out of reach stays among the upstreams.
//
// Sessions with all upstreams follow. A new upstream is started when it is needed. One
// that is gone is hung up, which settles what is in flight there with the cause "upstream
// changed". One with other settings, or at another host, is both. All others run on, under
// another name if they have one now. A bare name that only one upstream has is always good.
// A client that has asked for lists is told once, for each kind, to ask again. In the modern
// era a client with a subscription is told; the subscription goes on with the new upstreams,
// and ends when none is left. Sessions with one upstream stay as they began, unless it is at
// another host now.
func (p *Router) Update(upstreams []Upstream, unknown []Unknown) {
	before := p.current()
	names := make(map[string]bool, len(upstreams))
	for _, u := range upstreams {
		old := before.named(u.Name)
		names[u.Name] = old == nil || old.Link == u.Link // what another host's lists is not known
	}
	p.mu.Lock()
	p.configured = p.newConfigured(upstreams, unknown)
	p.memory.retain(names, len(unknown) > 0)
	p.mu.Unlock()
	for _, s := range p.running() {
		s.follow()
	}
}

// Returned says that upstreams whose link was lost are back, or that they are others now.
// It does not wait. The streams that the link lost must have ended before: what is open
// stays open. If the upstreams were late before, that is forgotten. Each client that has
// asked for lists is told once, for each kind, to ask again, however many upstreams are
// back. Where a client has subscribed to resources, the upstream is started within half a
// second to replay that; others are started when they are needed. A client with a
// subscriptions/listen is told once, when all of them were asked to listen again, which is
// as soon.
func (p *Router) Returned(upstreams ...string) {
	p.memory.forgive(upstreams)
	for _, s := range p.running() {
		s.relinked(upstreams)
	}
}

// current returns the set that is served now.
func (p *Router) current() *configured {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.configured == nil {
		p.configured = p.newConfigured(p.Upstreams, nil)
	}
	return p.configured
}

func (p *Router) running() []*session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.sessions))
}

// Serve is the session of one client with all upstreams, or with the one named, whose
// names stay bare. Who the client is goes for all its messages that do not say it. It owns
// c until it returns, closes it, and reports the one cause of the end, which satisfies
// errors.Is(err, [jsonrpc.ErrClosed]). Cancelling ctx ends it by force: what is in flight
// is settled with the connection-closed error first. An upstream of "" means all; one that
// is unknown ends it.
func (p *Router) Serve(ctx context.Context, who *identity.Identity, upstream string, c jsonrpc.Conn) error {
	return p.serveWith(ctx, upstream, newSession(p, who, c, p.connectionKey(who), p.inFlight()))
}

// ServePrincipal is Serve for all modern HTTP clients that are the same principal: of each
// message that it gets, the sender is known to be that. Its key is the same whenever it is
// served anew by this Proxy, so that hosts keep what is theirs. It takes four times as many
// requests at a time as the session of one client.
func (p *Router) ServePrincipal(ctx context.Context, who identity.Principal, upstream string, c jsonrpc.Conn) error {
	s := newSession(p, &identity.Identity{Principal: who}, c, p.principalKey(upstream, who), 4*p.inFlight())
	s.ofPrincipal = true
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
	if k, ok := s.conn.(Keeper); ok {
		k.KeepWhile(s.tasks.haveUnfinished)
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
	s.follow() // not before it is known: no Update passes it by
	if draining {
		s.startDrain()
	}
	return s.serve(ctx)
}

// Shutdown drains all sessions: each refuses new requests, and ends when its
// last one in flight is settled. It returns when all have ended or ctx is done;
// what is left then ends when the ctx of its Serve is cancelled.
func (p *Router) Shutdown(ctx context.Context) {
	p.mu.Lock()
	p.draining = true
	p.mu.Unlock()
	sessions := p.running()
	for _, s := range sessions {
		s.startDrain()
	}
	for _, s := range sessions {
		select {
		case <-s.ended:
		case <-ctx.Done():
			return
		}
	}
}

func (p *Router) logger() *slog.Logger {
	if p.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return p.Log
}

func (p *Router) inFlight() int { return orDefault(p.InFlight, 1024) }

func (p *Router) queueBytes() int { return 2 * orDefault(p.MaxMessage, 16<<20) }

func (p *Router) listTimeout() time.Duration { return orDefault(p.ListTimeout, 10*time.Second) }

func (p *Router) drain() time.Duration { return orDefault(p.Drain, 5*time.Second) }

// connectionKey returns a key that names one connection to the hosts. It is unguessable,
// and says which connections are the same principal's.
func (p *Router) connectionKey(who *identity.Identity) string {
	return mcp.ConnectionKey(rand.Text(), p.word(who.Key()))
}

// principalKey returns the key of a principal that is served with an upstream, or with all
// if that is "". It is unguessable, too, and says nothing of who it is, but that it may
// come back.
func (p *Router) principalKey(upstream string, who identity.Principal) string {
	return mcp.PrincipalKey(p.word(upstream, who.Key()), p.word(who.Key()), p.ID)
}

// word returns a word that nobody else can make of the same parts, which have no NUL.
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

func orDefault[T comparable](v, byDefault T) T {
	var zero T
	if v == zero {
		return byDefault
	}
	return v
}
