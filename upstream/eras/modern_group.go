package eras

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

const (
	maxGroupSessions = 16   // for the same capabilities; beyond, calls wait: see minSuspended
	maxWaiting       = 1024 // calls that wait for a session in one group; beyond, they are refused
)

// A group is the sessions whose servers were told the same capabilities. Guarded by
// account.mu.
type group struct {
	a        *account
	text     json.RawMessage // of the capabilities, for initialize
	can      mcp.Abilities
	sessions []*legacySession
	waiting  []*modernCall // for a session of their own, in order
	room     *timers.Timer // see makeRoom
	listens  map[*modernListen]struct{}
}

// forget drops a group that holds nothing.
func (g *group) forget() {
	if len(g.sessions)+len(g.waiting)+len(g.listens) > 0 {
		return
	}
	delete(g.a.groups, string(g.text))
	for spelling, other := range g.a.spelled {
		if other == g {
			delete(g.a.spelled, spelling)
		}
	}
}

// place brings a call to a session, or lets it wait for one. Servers that never
// ask anything run all calls in one session. In one that does, a call has a session of its
// own: then whatever is asked there belongs to it.
func (g *group) place(c *modernCall) {
	_, asks := g.a.b.asking.Load(g.a.id.upstream)
	alone := asks && c.works()
	l := g.free(alone)
	if l == nil && (!alone || len(g.sessions) < maxGroupSessions) {
		l = g.open(c.ClientInfo)
	}
	switch {
	case l != nil:
		l.take(c)
	case len(g.sessions) == 0 || len(g.waiting) >= maxWaiting:
		c.settle(g.a.refusal())
		g.forget()
	default:
		c.state = waiting
		g.waiting = append(g.waiting, c)
		g.makeRoom()
	}
}

// free returns a session for one more call, nil if there is none. Always the first
// one: calls that follow each other have one session, so that what a server
// remembers of it is there.
func (g *group) free(alone bool) *legacySession {
	for _, l := range g.sessions {
		if !alone || l.working == 0 {
			return l
		}
	}
	return nil
}

// next gives sessions to calls that wait for them.
func (g *group) next() {
	for len(g.waiting) > 0 {
		l := g.free(true)
		if l == nil && len(g.sessions) < maxGroupSessions {
			l = g.open(g.waiting[0].ClientInfo)
		}
		c := g.waiting[0]
		switch {
		case l != nil:
			g.waiting = g.waiting[1:]
			l.take(c)
		case len(g.sessions) == 0:
			g.waiting = g.waiting[1:]
			c.settle(g.a.refusal())
		default:
			return
		}
	}
}

// leave takes a call out that waits for a session.
func (g *group) leave(c *modernCall) {
	g.waiting = slices.DeleteFunc(g.waiting, func(other *modernCall) bool { return other == c })
}

// open begins one more session; nil if there is no room for it. The info is
// of the client that it is begun for.
func (g *group) open(info json.RawMessage) *legacySession {
	number, ok := g.a.numberLocked()
	if !ok || !g.a.b.begin() {
		return nil
	}
	l := newLegacySession(g, number, info)
	g.a.hold()
	g.a.sessions[number] = l
	g.sessions = append(g.sessions, l)
	go l.run() // Bridge.wg waits for it
	return l
}

// remove takes out a session that has ended.
func (g *group) remove(l *legacySession) {
	g.sessions = slices.DeleteFunc(g.sessions, func(other *legacySession) bool { return other == l })
}

// makeRoom ends suspended calls, the oldest first, as calls that wait need their sessions.
// When all were suspended too briefly, it is called again when it is time for one.
func (g *group) makeRoom() {
	for need := len(g.waiting) - g.emptying(); need > 0; need-- {
		l, since := g.longestSuspended()
		if l == nil {
			return
		}
		if wait := minSuspended - time.Since(since); wait > 0 {
			g.room.Stop()
			g.room = g.a.after(wait, g.makeRoom)
			return
		}
		l.endSuspended()
	}
}

// emptying returns how many sessions will soon be free, as nothing but cancelled
// calls is in them.
func (g *group) emptying() (n int) {
	for _, l := range g.sessions {
		if since, serves := l.suspendedSince(); since.IsZero() && !serves {
			n++
		}
	}
	return n
}

// longestSuspended returns the session that has been of use to suspended calls alone for
// the longest time, and since when; nil for none.
func (g *group) longestSuspended() (longest *legacySession, since time.Time) {
	for _, l := range g.sessions {
		at, serves := l.suspendedSince()
		if !serves && !at.IsZero() && (longest == nil || at.Before(since)) {
			longest, since = l, at
		}
	}
	return longest, since
}
