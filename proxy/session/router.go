package session

import (
	"cmp"
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
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/owners"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A DialFunc opens a stream of an era to the named upstream. Streams with the same key belong to one
// client. It must return soon after ctx ends. The end of the returned Conn should be a
// [*jsonrpc.ClosedError].
type DialFunc func(ctx context.Context, upstream, key string, era mcp.Era) (jsonrpc.Conn, error)

// An Upstream is the router's configuration of one upstream server.
type Upstream struct {
	Name string // [A-Za-z0-9_-]{1,32} without "__"
	Link string // to its host; "" for an upstream in this process. The same name at another host is another upstream

	// Prefix comes before "__" in exposed names, whatever the Router's Naming says. "" makes them
	// bare, nil follows Naming.
	Prefix *string

	StartTimeout   time.Duration // bounds the wait of initialize; zero means 30 s
	RequestTimeout time.Duration // without an answer, progress or an open server request; zero means none
	IdleStop       time.Duration // without use, after which its stream is closed until it is needed; zero: never

	Allow, Deny []string // globs on original tool names; Deny wins; no Allow means all

	// Lazy means that a session with several upstreams starts this one when something needs it, and
	// takes its description and lists from the catalog until then.
	Lazy   bool
	Shared bool   // all sessions use one server, so that a change of its lists is one for all
	Digest string // of its configuration, for the catalog; "": what it lists is not kept between runs
}

// allows reports whether clients may see and call a tool.
func (u *Upstream) allows(tool string) bool { return catalog.Allows(u.Allow, u.Deny, tool) }

// Unknown are the upstreams behind a link that has never been up.
type Unknown struct {
	Link   string
	End    jsonrpc.ClosedError // for requests that only they could answer; its words follow the link's name
	Failed bool                // the link did not come up, so nothing waits for it
}

// Limits bound a session.
type Limits struct {
	InFlight    int           // of one client at a time, of which a quarter may be subscriptions; zero means 1024
	MaxMessage  int           // bytes, for bounds on queues; zero means 16 MiB
	ListTimeout time.Duration // for a merged list, once for each late upstream; zero means 10 s
	Drain       time.Duration // for requests in flight after a half-close; zero means 5 s
	MaxStart    time.Duration // bounds the wait of initialize for all upstreams together; zero means 8 s
}

// A Router serves clients from a set of upstreams. Its fields must not change after the first call
// of Serve, ServePrincipal or Update.
type Router struct {
	// Upstreams are served until Update replaces them, and ignored after that. Their order is the
	// order of merged lists.
	Upstreams []Upstream
	Dial      DialFunc
	Naming    catalog.Naming

	// Starting reports whether the only server of an upstream has not answered anything yet. Nil, and
	// false, mean that this is not known.
	Starting func(upstream string) bool

	Version string // of the program, in serverInfo

	// ID distinguishes this Router from others with the same hosts, in the keys of principals.
	// Clients must not know it. It may be empty if the hosts serve no other Router.
	ID string

	// Several means that clients may be different principals. Then tasks and states of suspended
	// calls that an upstream gave to one are unknown to the others. It may be set at any time, and
	// must stay set; everything given before is then unknown to all.
	Several atomic.Bool

	Limits

	Log *slog.Logger // nil discards

	// AnonymousLog is the log of sessions whose client has proved nothing; nil: Log.
	AnonymousLog *slog.Logger

	Hooks observe.Hooks
	Tap   observe.Tap // wraps Conns for operators; nil wraps none

	// Policies decide what clients may do; nil allows everything. Change their rules only by
	// ReplacePolicies.
	Policies *policy.Policies

	// Catalog is what the upstreams say and list, for all sessions. Only its Log and its Store may be
	// set. CatalogAge is the age from which an entry is asked for again, when it is used; zero means
	// never.
	Catalog    lists.Catalog
	CatalogAge time.Duration

	mu         sync.Mutex  // may be taken with a session's mu held, never the other way
	configured *configured // the current ones; nil before they are read from Upstreams
	sessions   map[*session]struct{}
	draining   bool
	secret     string // for the keys of principals; created when first needed

	memory lists.Memory
	owned  owners.Principals // what upstreams gave to principals, if there may be several
	trials trialSessions
}

// configured are the upstreams of a router at one time. It is immutable.
type configured struct {
	upstreams []Upstream
	prefixes  []string // of their exposed names, with the separator; "" for bare ones
	unknown   []Unknown
	complete  bool          // all upstreams are known
	settled   bool          // no unknown upstream is worth waiting for
	replaced  chan struct{} // closed when there is a newer configuration
}

// sole reports whether there is one upstream, which describes itself, or none.
func (c *configured) sole() bool { return len(c.upstreams) < 2 && c.complete }

func (p *Router) newConfigured(upstreams []Upstream, unknown []Unknown) *configured {
	complete := len(unknown) == 0
	s := &configured{
		upstreams: slices.Clone(upstreams), unknown: unknown, complete: complete,
		settled:  !slices.ContainsFunc(unknown, func(u Unknown) bool { return !u.Failed }),
		replaced: make(chan struct{}),
	}
	for i := range s.upstreams {
		up := &s.upstreams[i]
		s.prefixes = append(s.prefixes, p.Naming.Prefix(up.Name, up.Prefix, len(upstreams) > 1 || !complete))
	}
	return s
}

// named returns the upstream with a name, nil for none.
func (c *configured) named(name string) *Upstream {
	i := slices.IndexFunc(c.upstreams, func(u Upstream) bool { return u.Name == name })
	if i < 0 {
		return nil
	}
	return &c.upstreams[i]
}

// alone returns a configuration with only this upstream, with bare names.
func (u *Upstream) alone() *configured {
	return &configured{upstreams: []Upstream{*u}, prefixes: []string{""}, complete: true, settled: true}
}

// Update replaces the upstreams. Their names must differ; their order is the order of merged lists.
// It may be called at any time and does not wait. While a link of unknown may still come up, a
// client's initialize waits for the next Update, as for an upstream that starts slowly, and so do
// lists that nobody else can answer. A known but unreachable upstream belongs to upstreams.
//
// Sessions with all upstreams follow. A new upstream starts when it is needed. A removed one is
// hung up, which settles its calls with the cause "upstream changed". One with other settings, or
// at another host, is removed and added. All others continue, possibly under another name. A bare
// name that only one upstream has always works. A client that has listed something gets one
// list_changed for each kind; in the modern era, a client with a subscription does. The
// subscription continues with the new upstreams, and ends when there are none. Sessions with one
// upstream do not change, unless it is at another host now.
func (p *Router) Update(upstreams []Upstream, unknown []Unknown) {
	before := p.current()
	names := make(map[string]bool, len(upstreams))
	for _, u := range upstreams {
		old := before.named(u.Name)
		names[u.Name] = old == nil || old.Link == u.Link // what another host's lists is not known
	}
	p.mu.Lock()
	p.serveLocked(p.newConfigured(upstreams, unknown))
	p.memory.Retain(names, len(unknown) > 0)
	p.mu.Unlock()
	for _, s := range p.running() {
		s.follow()
	}
}

// Returned reports that upstreams whose link was lost are back, or have changed. It does not wait.
// The streams of the lost link must have ended before. It forgets that the upstreams were late.
// Each client that has listed something gets one list_changed for each kind, however many upstreams
// are back. If a client has subscribed to resources, the upstream starts within half a second to
// replay that; others start when they are needed. A client with a subscriptions/listen is notified
// once, after all of them were asked to listen again, which is as soon.
func (p *Router) Returned(upstreams ...string) {
	p.memory.Forgive(upstreams)
	p.Catalog.Forget(upstreams)
	for _, s := range p.running() {
		s.relinked(upstreams)
	}
}

// current returns the current configuration.
func (p *Router) current() *configured {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.configured == nil {
		p.serveLocked(p.newConfigured(p.Upstreams, nil))
	}
	return p.configured
}

// serveLocked makes c the current configuration.
func (p *Router) serveLocked(c *configured) {
	if p.configured != nil {
		close(p.configured.replaced)
	}
	p.configured = c
	var all []lists.Served
	for _, u := range c.upstreams {
		all = append(all, lists.Served{Name: u.Name, Digest: u.Digest, Allow: u.Allow, Deny: u.Deny})
	}
	if p.Catalog.Changed == nil { // nothing uses the catalog yet
		p.Catalog.Changed = p.relisted
	}
	p.Catalog.Serve(all)
}

func (p *Router) running() []*session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.sessions))
}

// Serve runs the session of one client with all upstreams, or with the named one, whose names stay
// bare. who is the sender of all messages without one. Serve owns c until it returns, and closes
// it. It returns the cause of the end, which satisfies errors.Is(err, [jsonrpc.ErrClosed]). If ctx
// ends, open requests are settled with the connection-closed error first. An empty upstream means
// all; an unknown one ends the session at once.
func (p *Router) Serve(ctx context.Context, who *identity.Identity, upstream string, c jsonrpc.Conn) error {
	return p.serveWith(ctx, upstream, newSession(p, who, c, p.connectionKey(who), p.inFlight()))
}

// ServePrincipal is Serve for all modern HTTP clients with the same principal. All messages must
// have that sender. Its key is always the same in this process, so that hosts keep the principal's
// state. It allows four times as many requests at a time as the session of one client.
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
	if draining {
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

// Resolve returns the current target of a name of a kind, or of a URI. Templates count as
// resources.
func (p *Router) Resolve(k catalog.Kind, name string) catalog.Resolution {
	now := p.current()
	var upstreams []lists.Named
	for i, u := range now.upstreams {
		upstreams = append(upstreams, lists.Named{Name: u.Name, Prefix: now.prefixes[i], Allows: u.allows})
	}
	return lists.Resolve(&p.memory, &p.Catalog, upstreams, now.complete, k, name)
}

func (p *Router) isDraining() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.draining
}

func (p *Router) logger() *slog.Logger {
	if p.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return p.Log
}

func (p *Router) inFlight() int { return cmp.Or(p.InFlight, 1024) }

func (p *Router) queueBytes() int { return 2 * cmp.Or(p.MaxMessage, 16<<20) }

func (p *Router) listTimeout() time.Duration { return cmp.Or(p.ListTimeout, 10*time.Second) }

func (p *Router) drain() time.Duration { return cmp.Or(p.Drain, 5*time.Second) }

// connectionKey returns the hosts' key for one connection. It is unguessable, and shows which
// connections belong to the same principal.
func (p *Router) connectionKey(who *identity.Identity) string {
	return mcp.ConnectionKey(rand.Text(), p.word(who.Key()))
}

// principalKey returns the key of a principal with an upstream, "" for all. It is unguessable, too,
// and says nothing about the principal, except that it may return.
func (p *Router) principalKey(upstream string, who identity.Principal) string {
	return mcp.PrincipalKey(p.word(upstream, who.Key()), p.word(who.Key()), p.ID)
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

// put sets an entry of a map, which is made when it is first needed.
func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[k] = v
}
