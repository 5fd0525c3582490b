package session

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// An upstream set is the upstreams that a session serves at one time in one era. It is
// immutable: a change replaces it, and a call keeps the one that it began with.
type upstreamSet struct {
	*configured // that it is of
	s           *session
	era         mcp.Era
	conns       []*upstreamConn // of the upstreams in the set
	replaced    chan struct{}   // closed when there is a newer upstream set
}

// only returns the one upstream there is. It speaks for itself: what it says of
// itself passes, and so does what nobody knows. It is nil if there are several,
// or may be, since others are not known yet; a request that comes after a second
// upstream is told apart again.
func (set *upstreamSet) only() *upstreamConn {
	if set.complete && len(set.conns) == 1 {
		return set.conns[0]
	}
	return nil
}

// unreached is the error for what only an upstream that is not known yet could
// have; nil if all are known.
func (set *upstreamSet) unreached() *jsonrpc.Error {
	if set.complete {
		return nil
	}
	return jsonrpc.ConnectionClosed(jsonrpc.CodeInternalError, "", "link lost", jsonrpc.NotSent)
}

// upstreams returns the upstream set of this moment, for what belongs to no call.
func (s *session) upstreams(era mcp.Era) *upstreamSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.upstreamsLocked(era)
}

// upstreamsLocked makes the upstream set of the modern era when it is first needed: most
// sessions of the legacy era never do.
func (s *session) upstreamsLocked(era mcp.Era) *upstreamSet {
	if era == mcp.Legacy {
		return s.legacy
	}
	if s.modern == nil {
		set := s.legacy
		s.modern = &upstreamSet{configured: set.configured, s: s, era: era, replaced: make(chan struct{})}
		for _, u := range set.conns {
			s.modern.conns = append(s.modern.conns, newUpstreamConn(s.modern, u.up))
		}
	}
	return s.modern
}

// upstreamSetsLocked returns those that there are.
func (s *session) upstreamSetsLocked() []*upstreamSet {
	if s.modern == nil {
		return []*upstreamSet{s.legacy}
	}
	return []*upstreamSet{s.legacy, s.modern}
}

// follow makes the session serve what the proxy serves now. The streams of
// upstreams that stay as they are notice nothing.
func (s *session) follow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.follows || s.phase >= closing {
		return
	}
	served := s.p.current() // under the lock: no older set replaces a newer one
	old := s.legacy
	next, added := old.followLocked(served)
	s.legacy = next
	if !slices.Equal(old.conns, next.conns) || !slices.Equal(old.prefixes, next.prefixes) {
		s.news.announce(added)
	}
	if s.modern != nil {
		s.modern, _ = s.modern.followLocked(served)
		for sub := range s.subscriptions {
			sub.poke()
		}
	}
}

// followLocked returns the upstream set that follows, of what is served now, and which
// of its upstream connections are new. Those that it has no more are hung up; those that only have
// other names notice nothing.
func (set *upstreamSet) followLocked(served *configured) (next *upstreamSet, added []*upstreamConn) {
	next = &upstreamSet{configured: served, s: set.s, era: set.era, replaced: make(chan struct{})}
	gone := make(map[string]*upstreamConn, len(set.conns))
	for _, u := range set.conns {
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
	close(set.replaced)
	for _, u := range gone {
		set.s.removeLocked(u)
	}
	return next, added
}

// serves reports whether the upstream connection is as it would be if it was made anew.
func (u *upstreamConn) serves(up *Upstream) bool {
	return u.up.Name == up.Name &&
		u.up.StartTimeout == up.StartTimeout && u.up.RequestTimeout == up.RequestTimeout &&
		slices.Equal(u.up.Allow, up.Allow) && slices.Equal(u.up.Deny, up.Deny)
}

// removeLocked hangs up an upstream that is no longer served. The end of its
// stream settles what is in flight there; what else points to it is forgotten.
func (s *session) removeLocked(u *upstreamConn) {
	u.hangUpLocked(causeChanged)
	maps.DeleteFunc(s.resourceSubs, func(_ string, sub resourceSubscription) bool { return sub.conn == u })
	maps.DeleteFunc(s.readers, func(_ catalog.Digest, reader *upstreamConn) bool { return reader == u })
	s.views.forget(u)
	s.tasks.forgetLocked(u)
	s.clientTasks.forgetLocked(u)
}

// causeChanged is what requests are told that were for an upstream which is gone or
// something else now. Its host says the same.
const causeChanged = "upstream changed"

// relinked is called when the link to upstreams was lost and is back. What they
// offer may have changed while nobody could hear of it.
func (s *session) relinked(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase >= closing {
		return
	}
	s.wakeSubscriptionsLocked(names)
	var back []*upstreamConn
	for _, u := range s.legacy.conns {
		if slices.Contains(names, u.up.Name) {
			back = append(back, u)
		}
	}
	if len(back) == 0 {
		return
	}
	s.news.announce(back)
	for _, sub := range s.resourceSubs {
		if u := sub.conn; slices.Contains(back, u) && !u.reopening {
			u.reopening = true
			s.wg.Go(u.reopen)
		}
	}
}

// wakeSubscriptionsLocked makes the subscriptions of the client listen to upstreams that are
// back, all at the same time. It is told then of all that it has missed, once, however
// long each of them takes to acknowledge.
func (s *session) wakeSubscriptionsLocked(names []string) {
	if len(s.subscriptions) == 0 {
		return
	}
	after := rand.N(reopenWithin)
	for _, u := range s.modern.conns {
		if slices.Contains(names, u.up.Name) {
			u.wakePartsLocked(after)
			u.tellMissedLocked(after)
		}
	}
}

// reopenWithin is the time over which sessions spread the opening of their
// streams when a link is back.
const reopenWithin = 500 * time.Millisecond

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
