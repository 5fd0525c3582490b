package session

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// An upstream set is the upstreams that a session serves at one time in one era. It is
// immutable: a change replaces it, and a call keeps the one that it began with.
type upstreamSet struct {
	*configured  // that it is of
	s            *session
	era          mcp.Era
	conns        []*upstreamConn // of the upstreams in the set
	replaced     chan struct{}   // closed when there is a newer upstream set
	several      bool            // there are others, which clients of this one do not see
	byVisibility sync.Map        // *policy.Rule to *upstreamSet, see visibleTo
}

// only returns the sole upstream, nil if there are several, or may be since some are not
// known yet. A sole upstream speaks for itself: what it says of itself passes, and so do
// messages that nobody knows.
func (set *upstreamSet) only() *upstreamConn {
	if set.complete && len(set.conns) == 1 && !set.several {
		return set.conns[0]
	}
	return nil
}

// unreached is the error for what only an upstream that is not known yet could have; nil
// if all are known. It names the links to those, except links that policies hide: a client
// that would not see an upstream of the link's name does not read that name either.
func (set *upstreamSet) unreached(g *policy.Grant) *jsonrpc.Error {
	if set.complete {
		return nil
	}
	end := jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost}
	var says []string
	for _, u := range set.unknown {
		if !g.Sees(u.Link) {
			continue
		}
		if says == nil {
			end = u.End
		}
		end.Lasting = end.Lasting && u.End.Lasting
		says = append(says, u.End.About(u.Link))
	}
	end.Says = strings.Join(says, "; ")
	return end.Wire(jsonrpc.CodeInternalError, "", jsonrpc.NotSent)
}

// upstreamSets are those of a session.
type upstreamSets struct {
	s       *session
	follows bool // they are all upstreams, as the router serves them; false: one for good

	// Only stored with changing held: a stored set is never older than the one before.
	legacy   atomic.Pointer[upstreamSet] // never nil; the same from closing on
	modern   atomic.Pointer[upstreamSet] // nil before the first request of that era
	changing sync.Mutex                  // may be taken with session.mu held
}

// hold makes the first set.
func (sets *upstreamSets) hold(c *configured) {
	set := &upstreamSet{configured: c, s: sets.s, era: mcp.Legacy, replaced: make(chan struct{})}
	for i := range c.upstreams {
		set.conns = append(set.conns, newUpstreamConn(set, &c.upstreams[i]))
	}
	sets.legacy.Store(set)
}

// of returns the upstream set of this moment. That of the modern era is made when it is
// first needed: most sessions of the legacy era never do.
func (sets *upstreamSets) of(era mcp.Era) *upstreamSet {
	if era == mcp.Legacy {
		return sets.legacy.Load()
	}
	if set := sets.modern.Load(); set != nil {
		return set
	}
	sets.changing.Lock()
	defer sets.changing.Unlock()
	if set := sets.modern.Load(); set != nil {
		return set
	}
	legacy := sets.legacy.Load()
	set := &upstreamSet{configured: legacy.configured, s: sets.s, era: era, replaced: make(chan struct{})}
	for _, u := range legacy.conns {
		set.conns = append(set.conns, newUpstreamConn(set, u.up))
	}
	sets.modern.Store(set)
	return set
}

// conns returns the upstream connections of both eras.
func (sets *upstreamSets) conns() []*upstreamConn {
	conns := sets.legacy.Load().conns
	if modern := sets.modern.Load(); modern != nil {
		conns = slices.Concat(conns, modern.conns)
	}
	return conns
}

// follow makes the session serve what the router serves now. Upstreams that stay as they
// are notice nothing. A session with one upstream follows that to another host alone.
func (s *session) follow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase >= closing {
		return
	}
	served := s.router.current() // under the lock: no older set replaces a newer one
	if !s.upstreams.follows {
		held := s.upstreams.legacy.Load().conns[0].up
		now := served.named(held.Name)
		if now == nil || now.Link == held.Link {
			return
		}
		served = now.alone()
	}
	s.upstreams.changing.Lock()
	defer s.upstreams.changing.Unlock()
	if added, differs := s.upstreams.followLocked(&s.upstreams.legacy, served); differs {
		s.announce(added)
	}
	if s.upstreams.modern.Load() != nil {
		s.upstreams.followLocked(&s.upstreams.modern, served)
		s.subscriptions.follow()
	}
}

// followLocked replaces an upstream set by one of what is served now. It hangs up upstreams
// that are gone. It returns which upstream connections are new, and whether clients see
// other upstreams or names.
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
			u = newUpstreamConn(next, up)
			added = append(added, u)
		}
		next.conns = append(next.conns, u)
	}
	at.Store(next)
	close(old.replaced)
	for _, u := range gone {
		sets.s.removeLocked(u)
	}
	g := sets.s.grant()
	return added, !old.visibleTo(g).equal(next.visibleTo(g))
}

// equal reports whether clients see the same upstreams under the same names.
func (set *upstreamSet) equal(other *upstreamSet) bool {
	return slices.Equal(set.conns, other.conns) && slices.Equal(set.prefixes, other.prefixes)
}

// serves reports whether a new connection to the upstream would be the same.
func (u *upstreamConn) serves(up *Upstream) bool {
	return u.up.Name == up.Name && u.up.Link == up.Link &&
		u.up.StartTimeout == up.StartTimeout && u.up.RequestTimeout == up.RequestTimeout &&
		slices.Equal(u.up.Allow, up.Allow) && slices.Equal(u.up.Deny, up.Deny)
}

// removeLocked hangs up an upstream that is no longer served. The end of its stream settles
// what is in flight there. All concerns forget it.
func (s *session) removeLocked(u *upstreamConn) {
	u.hangUpLocked(jsonrpc.CauseChanged)
	s.owners.forget(u)
	s.views.forget(u.lists)
}

// relinked is called when the link to upstreams was lost and is back. What they offer may
// have changed, and nobody has heard of it.
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
	s.subscriptions.returned(modern)
	if len(legacy) == 0 {
		return
	}
	s.announce(legacy)
	for _, u := range legacy {
		if !u.reopening && s.resourceSubs.of(u) != nil {
			u.reopening = true
			s.wg.Go(u.reopen)
		}
	}
}

// announce tells the client to ask for lists again, because of these upstreams or of some
// that are gone.
func (s *session) announce(conns []*upstreamConn) {
	var upstreams []*shownLists
	for _, u := range conns {
		upstreams = append(upstreams, u.shown)
	}
	s.listChanges.announce(upstreams)
}

// reopen opens the stream to an upstream at which the client has subscriptions,
// so that they are replayed.
func (u *upstreamConn) reopen() {
	timer := time.NewTimer(rand.N(reopenWithin))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-u.ctx.Done():
	}
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	u.reopening = false
	if u.ctx.Err() == nil {
		u.openLocked()
	}
}
