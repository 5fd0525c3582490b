package session

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/listen"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

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
// subscription continues with the new upstreams, and ends when there are none. Subscriptions to
// resources are repeated where an upstream was replaced. Sessions with one upstream follow
// that one, and keep it when it is removed.
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

// Forwards returns the headers of clients' requests that an upstream gets, those of all upstreams for
// "", by name.
func (p *Router) Forwards(upstream string) (all []identity.Header) {
	for _, u := range p.current().upstreams {
		if upstream != "" && u.Name != upstream {
			continue
		}
		for _, f := range u.Forward {
			all = append(all, identity.Header{Name: f.From, User: f.Identity})
		}
	}
	if len(all) < 2 {
		return all
	}
	slices.SortFunc(all, func(a, b identity.Header) int { // the one that says who the user is comes first
		if c := strings.Compare(a.Name, b.Name); c != 0 || a.User == b.User {
			return c
		}
		if a.User {
			return -1
		}
		return 1
	})
	return slices.CompactFunc(all, func(a, b identity.Header) bool { return a.Name == b.Name })
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

// hold stores the first set.
func (sets *upstreamSets) hold(c *configured) {
	set := &upstreamSet{configured: c, s: sets.s, era: mcp.Legacy, replaced: make(chan struct{})}
	for i := range c.upstreams {
		set.conns = append(set.conns, newUpstreamConn(&sets.s.surroundings, set.era, &c.upstreams[i]))
	}
	sets.legacy.Store(set)
}

// follow makes the session serve the router's current upstreams. Unchanged upstreams are not
// affected. A session with one upstream follows only that one.
func (s *session) follow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase >= closing {
		return
	}
	served := s.router.current() // under the lock, so that no older set replaces a newer one
	if !s.upstreams.follows {
		held := s.upstreams.legacy.Load().conns[0]
		now := served.named(held.up.Name)
		if now == nil { // nobody would notify of anything
			s.subscriptions.EndOpen()
		}
		if now == nil || held.serves(now) {
			return
		}
		served = now.alone()
	}
	s.upstreams.changing.Lock()
	defer s.upstreams.changing.Unlock()
	if added, differs := s.upstreams.followLocked(&s.upstreams.legacy, served); differs {
		s.lists.Announce(listsOf(added))
	}
	if s.upstreams.modern.Load() != nil {
		s.upstreams.followLocked(&s.upstreams.modern, served)
		s.subscriptions.Follow()
	}
}

// followLocked replaces an upstream set by one of served, and hangs up removed upstreams. It
// returns the new upstream connections, and whether clients see other upstreams or names.
func (sets *upstreamSets) followLocked(at *atomic.Pointer[upstreamSet], served *configured) (added []*upstreamConn, differs bool) {
	old := at.Load()
	next := &upstreamSet{configured: served, s: sets.s, era: old.era, replaced: make(chan struct{})}
	gone := make(map[string]*upstreamConn, len(old.conns))
	for _, u := range old.conns {
		gone[u.up.Name] = u
	}
	for i := range served.upstreams {
		up := &served.upstreams[i]
		u := gone[up.Name]
		if u != nil && u.serves(up) {
			delete(gone, up.Name)
		} else {
			u = newUpstreamConn(&sets.s.surroundings, next.era, up)
			added = append(added, u)
		}
		next.conns = append(next.conns, u)
	}
	at.Store(next)
	close(old.replaced)
	for _, u := range gone {
		if i := slices.IndexFunc(added, u.isReplacedBy); i >= 0 && sets.s.resourceSubs.Move(u, added[i]) {
			added[i].reopenSoon()
		}
		sets.s.removeLocked(u)
	}
	g := sets.s.grant()
	return added, !old.visibleTo(g).equal(next.visibleTo(g))
}

// serves reports whether a new connection to the upstream would be the same.
func (u *upstreamConn) serves(up *Upstream) bool {
	return u.up.Name == up.Name && u.up.Link == up.Link &&
		(u.up.Digest == up.Digest || up.Link != "") && // a host ends the streams on what it changes
		u.up.StartTimeout == up.StartTimeout && u.up.RequestTimeout == up.RequestTimeout && u.up.IdleStop == up.IdleStop &&
		u.up.Shared == up.Shared && u.up.Process == up.Process &&
		slices.Equal(u.up.Allow, up.Allow) && slices.Equal(u.up.Deny, up.Deny) && slices.Equal(u.up.Forward, up.Forward)
}

// isReplacedBy reports whether another connection is to the upstream that has the name now: with other
// settings, or at another host. A client that has subscribed cannot learn that it should do so again.
func (u *upstreamConn) isReplacedBy(by *upstreamConn) bool { return u.up.Name == by.up.Name }

// removeLocked hangs up an upstream that is no longer served, which settles its calls, and makes
// all concerns forget it.
func (s *session) removeLocked(u *upstreamConn) {
	u.hangUp(jsonrpc.CauseChanged)
	s.tasks.Forget(u)
	s.clientTasks.Forget(u)
	s.readers.Forget(u)
	s.resourceSubs.Forget(u)
}

// relinked is called when a lost link to upstreams is back. They may have changed without a
// notification.
func (s *session) relinked(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase >= closing {
		return
	}
	var legacy, modern []*upstreamConn
	for _, u := range s.upstreams.conns() {
		switch {
		case !slices.Contains(names, u.up.Name), !s.grant().Sees(u.up.Name) && u.era == mcp.Legacy:
		case u.era == mcp.Modern:
			modern = append(modern, u)
		default:
			legacy = append(legacy, u)
		}
	}
	after := rand.N(reopenWithin)
	for _, u := range modern {
		s.subscriptions.Returned(u, after)
	}
	if len(legacy) == 0 {
		return
	}
	s.lists.Announce(listsOf(legacy))
	for _, u := range legacy {
		if s.resourceSubs.Of(u) != nil {
			u.reopenSoon()
		}
	}
}

// relisted tells the clients whose lists come from the catalog that an upstream lists something
// else.
func (p *Router) relisted(upstream string) {
	p.memory.NoteInTime(upstream, lists.Starts)
	p.memory.NoteInTime(upstream, mcp.MethodDiscover)
	for k := range catalog.Kinds {
		p.memory.NoteInTime(upstream, k.Method())
	}
	for _, s := range p.running() {
		for _, u := range s.upstreams.conns() {
			if u.up.Name == upstream && s.grant().Sees(upstream) {
				u.lists.Relisted()
			}
		}
	}
}

// ReplacePolicies replaces the rules from the next request of every session on, and notifies
// clients of the lists that change for them. If it fails, as [policy.Policies.Replace] does, it
// changes nothing.
func (p *Router) ReplacePolicies(rules []policy.Rule) error {
	before, err := p.Policies.Replace(rules)
	if err != nil {
		return err
	}
	for _, s := range p.running() {
		s.regrant(before)
	}
	return nil
}

// regrant notifies the client of the lists that differ from those under the policies before.
func (s *session) regrant(before *policy.Policies) {
	who := cmp.Or(s.lastSender.Load(), s.who)
	s.lists.TellWanted(s.upstreams.of(mcp.Legacy).differing(catalog.Digest{}, before.For(who), s.grant()))
	s.subscriptions.Regrant(func(c listen.Client) [catalog.Kinds]bool {
		l := c.(*listener)
		return s.upstreams.of(mcp.Modern).differing(l.r.caps, before.For(l.who), l.grant())
	})
}

// differing returns the lists that two grants show differently. For an upstream that was never
// listed, it compares whether they may show anything.
func (set *upstreamSet) differing(caps catalog.Digest, a, b *policy.Grant) (lists [catalog.Kinds]bool) {
	for _, u := range set.conns {
		for k := range catalog.Kinds {
			lists[k] = lists[k] || u.differs(caps, k, a, b)
		}
	}
	return lists
}

func (u *upstreamConn) differs(caps catalog.Digest, k catalog.Kind, a, b *policy.Grant) bool {
	kind := lists.KindOf(k)
	t := u.lists.Table(caps, k)
	if t == nil {
		return a.SeesAny(kind, u.up.Name) != b.SeesAny(kind, u.up.Name)
	}
	return slices.ContainsFunc(t.Entries, func(e catalog.Entry) bool {
		name := ruleName(k, u, e.Name)
		return u.lists.Shows(k, e.Name) && a.May(kind, name) != b.May(kind, name)
	})
}
