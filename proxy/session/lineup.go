package session

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A lineup is the upstreams that a session serves at one time in one era. It is
// immutable: a change replaces it, and a call keeps the one that it began with.
type lineup struct {
	*set     // that it is of
	s        *session
	era      mcp.Era
	legs     []*leg        // of the upstreams in the set
	replaced chan struct{} // closed when there is a newer lineup
}

// only returns the one upstream there is. It speaks for itself: what it says of
// itself passes, and so does what nobody knows. It is nil if there are several,
// or may be, since others are not known yet; a request that comes after a second
// upstream is told apart again.
func (v *lineup) only() *leg {
	if v.complete && len(v.legs) == 1 {
		return v.legs[0]
	}
	return nil
}

// unreached is the error for what only an upstream that is not known yet could
// have; nil if all are known.
func (v *lineup) unreached() *jsonrpc.Error {
	if v.complete {
		return nil
	}
	return jsonrpc.ConnectionClosed(jsonrpc.CodeInternalError, "", "link lost", jsonrpc.NotSent)
}

// upstreams returns the lineup of this moment, for what belongs to no call.
func (s *session) upstreams(era mcp.Era) *lineup {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.upstreamsLocked(era)
}

// upstreamsLocked makes the lineup of the modern era when it is first needed: most
// sessions of the legacy era never do.
func (s *session) upstreamsLocked(era mcp.Era) *lineup {
	if era == mcp.Legacy {
		return s.lineup
	}
	if s.modern == nil {
		v := s.lineup
		s.modern = &lineup{set: v.set, s: s, era: era, replaced: make(chan struct{})}
		for _, l := range v.legs {
			s.modern.legs = append(s.modern.legs, newLeg(s.modern, l.up))
		}
	}
	return s.modern
}

// lineupsLocked returns those that there are.
func (s *session) lineupsLocked() []*lineup {
	if s.modern == nil {
		return []*lineup{s.lineup}
	}
	return []*lineup{s.lineup, s.modern}
}

// follow makes the session serve what the proxy serves now. The streams of
// upstreams that stay as they are notice nothing.
func (s *session) follow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.follows || s.phase >= closing {
		return
	}
	set := s.p.current() // under the lock: no older set replaces a newer one
	old := s.lineup
	next, added := old.followLocked(set)
	s.lineup = next
	if !slices.Equal(old.legs, next.legs) || !slices.Equal(old.prefixes, next.prefixes) {
		s.announceLocked(added)
	}
	if s.modern != nil {
		s.modern, _ = s.modern.followLocked(set)
		for ln := range s.listens {
			ln.poke()
		}
	}
}

// followLocked returns the lineup that follows, of what is served now, and which
// of its legs are new. Those that it has no more are hung up; those that only have
// other names notice nothing.
func (v *lineup) followLocked(set *set) (next *lineup, added []*leg) {
	next = &lineup{set: set, s: v.s, era: v.era, replaced: make(chan struct{})}
	gone := make(map[string]*leg, len(v.legs))
	for _, l := range v.legs {
		gone[l.up.Name] = l
	}
	for i := range set.upstreams {
		up := &set.upstreams[i]
		l := gone[up.Name]
		if l != nil && l.serves(up) {
			delete(gone, up.Name)
		} else {
			l = newLeg(next, up)
			added = append(added, l)
		}
		next.legs = append(next.legs, l)
	}
	close(v.replaced)
	for _, l := range gone {
		v.s.removeLocked(l)
	}
	return next, added
}

// serves reports whether the leg is as it would be if it was made anew.
func (l *leg) serves(up *Upstream) bool {
	return l.up.Name == up.Name &&
		l.up.StartTimeout == up.StartTimeout && l.up.RequestTimeout == up.RequestTimeout &&
		slices.Equal(l.up.Allow, up.Allow) && slices.Equal(l.up.Deny, up.Deny)
}

// removeLocked hangs up an upstream that is no longer served. The end of its
// stream settles what is in flight there; what else points to it is forgotten.
func (s *session) removeLocked(l *leg) {
	l.hangUpLocked(causeChanged)
	maps.DeleteFunc(s.subs, func(_ string, sub subscription) bool { return sub.leg == l })
	maps.DeleteFunc(s.readers, func(_ digest, reader *leg) bool { return reader == l })
	s.forgetLocked(l)
	s.tasks.forgetLocked(l)
	s.clientTasks.forgetLocked(l)
}

// causeChanged is what requests are told that were for an upstream which is gone or
// something else now. Its host says the same.
const causeChanged = "upstream changed"

// announceLocked tells the client that the lists which it has asked for are to
// be asked for again, because of these upstreams or of some that are gone: once
// for each kind, however many they are. Until the client has listed, a start of
// these upstreams is no news.
func (s *session) announceLocked(legs []*leg) {
	s.announced++
	for k := range kinds {
		if !s.wanted[k] || !s.hello.listChanged[k] {
			continue
		}
		for _, l := range legs {
			l.announced[k] = s.announced
		}
		s.tellChangedLocked(min(k, resources)) // there is one notification for both
	}
}

// relinked is called when the link to upstreams was lost and is back. What they
// offer may have changed while nobody could hear of it.
func (s *session) relinked(names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase >= closing {
		return
	}
	s.wakeListensLocked(names)
	var back []*leg
	for _, l := range s.lineup.legs {
		if slices.Contains(names, l.up.Name) {
			back = append(back, l)
		}
	}
	if len(back) == 0 {
		return
	}
	s.announceLocked(back)
	for _, sub := range s.subs {
		if l := sub.leg; slices.Contains(back, l) && !l.reopening {
			l.reopening = true
			s.wg.Go(l.reopen)
		}
	}
}

// wakeListensLocked makes the listens of the client listen to upstreams that are
// back, all at the same time. It is told then of all that it has missed, once, however
// long each of them takes to acknowledge.
func (s *session) wakeListensLocked(names []string) {
	if len(s.listens) == 0 {
		return
	}
	after := rand.N(reopenWithin)
	for _, l := range s.modern.legs {
		if slices.Contains(names, l.up.Name) {
			l.wakeSharesLocked(after)
			l.tellMissedLocked(after)
		}
	}
}

// reopenWithin is the time over which sessions spread the opening of their
// streams when a link is back.
const reopenWithin = 500 * time.Millisecond

// reopen opens the stream to an upstream at which the client has subscriptions,
// so that they are replayed.
func (l *leg) reopen() {
	timer := time.NewTimer(rand.N(reopenWithin))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.ctx.Done():
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.reopening = false
	if l.ctx.Err() == nil {
		l.openLocked()
	}
}
