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

// An upstreamSet is the upstreams of a session at one time in one era. It is immutable: a change
// replaces it, and a request keeps the one with which it began.
type upstreamSet struct {
	*configured  // its configuration
	s            *session
	era          mcp.Era
	conns        []*upstreamConn // one for each upstream
	replaced     chan struct{}   // closed when there is a newer set
	several      bool            // there are others, which the clients of this set do not see
	byVisibility sync.Map        // *policy.Rule to *upstreamSet, see visibleTo
}

// only returns the sole upstream, nil if there are several, or may be because some are unknown. A
// sole upstream describes itself, and unknown messages from and to it are forwarded.
func (set *upstreamSet) only() *upstreamConn {
	if set.complete && len(set.conns) == 1 && !set.several {
		return set.conns[0]
	}
	return nil
}

// unreached returns the error for things that only an unknown upstream could have; nil if all are
// known. It names the links, except those that policies hide: a client that would not see an
// upstream with the link's name must not learn that name.
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

// upstreamSets are the upstream sets of a session.
type upstreamSets struct {
	s       *session
	follows bool // serves all upstreams of the router; false: always one

	// Stored with changing held, so that no older set replaces a newer one.
	legacy   atomic.Pointer[upstreamSet] // never nil; unchanged from closing on
	modern   atomic.Pointer[upstreamSet] // nil before the first request of that era
	changing sync.Mutex                  // may be taken with session.mu held
}

// hold stores the first set.
func (sets *upstreamSets) hold(c *configured) {
	set := &upstreamSet{configured: c, s: sets.s, era: mcp.Legacy, replaced: make(chan struct{})}
	for i := range c.upstreams {
		set.conns = append(set.conns, newUpstreamConn(set, &c.upstreams[i]))
	}
	sets.legacy.Store(set)
}

// of returns the current upstream set. That of the modern era is created when it is first needed,
// because most sessions of the legacy era never need it.
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

// follow makes the session serve the router's current upstreams. Unchanged upstreams are not
// affected. A session with one upstream follows only that one, to another host.
func (s *session) follow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase >= closing {
		return
	}
	served := s.router.current() // under the lock, so that no older set replaces a newer one
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
		u.up.StartTimeout == up.StartTimeout && u.up.RequestTimeout == up.RequestTimeout && u.up.IdleStop == up.IdleStop &&
		slices.Equal(u.up.Allow, up.Allow) && slices.Equal(u.up.Deny, up.Deny)
}

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
	s.announce(legacy)
	for _, u := range legacy {
		if s.resourceSubs.Of(u) != nil {
			u.reopenSoon()
		}
	}
}

// announce notifies the client to list again, because of these upstreams or of removed ones.
func (s *session) announce(conns []*upstreamConn) {
	s.lists.Announce(listsOf(conns))
}

// reopenWithin is the time over which sessions spread the opening of their streams when a link is
// back.
const reopenWithin = 500 * time.Millisecond

// filter returns the upstreams that are as asked for.
func (set *upstreamSet) filter(are func(*upstreamConn) bool) (found []*upstreamConn) {
	for _, u := range set.conns {
		if are(u) {
			found = append(found, u)
		}
	}
	return found
}
