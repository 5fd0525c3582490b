package eras

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

const (
	maxGroupSessions = 16   // with the same capabilities; further calls wait: see minSuspended
	maxWaiting       = 1024 // calls that wait for a session of one group; further ones are refused
)

// A group is the sessions that were initialized with the same capabilities. account.mu guards it.
type group struct {
	a        *account
	text     json.RawMessage // of the capabilities, for initialize
	can      mcp.Abilities
	sessions []*legacySession
	waiting  []*modernCall // for a session, in order
	room     *timers.Timer // see makeRoom
	listens  map[*modernListen]struct{}
}

// forget removes an empty group.
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

// place gives a call to a session, or queues it. Calls to a server that never asks anything share one session. On
// a server that asks, each call has its own session, so that every question there belongs to it.
func (g *group) place(c *modernCall) {
	_, asks := g.a.life.asking.Load(g.a.id.upstream)
	alone := asks && c.works()
	l := g.sessionFor(c.ClientInfo, alone)
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

// sessionFor returns a session for another call or listen of a client with this info; nil if there is no room. It
// prefers the first session, so that consecutive calls find what the server remembers. A call that must be alone gets
// one in which no other works. To make room sessionFor may end another session, which gives queued calls sessions.
func (g *group) sessionFor(info json.RawMessage, alone bool) *legacySession {
	for _, l := range g.sessions {
		if !alone || l.working == 0 {
			return l
		}
	}
	if len(g.sessions) >= maxGroupSessions {
		return nil
	}
	return g.open(info)
}

// next gives sessions to queued calls.
func (g *group) next() {
	for len(g.waiting) > 0 {
		l := g.sessionFor(g.waiting[0].ClientInfo, true)
		if len(g.waiting) == 0 { // the end of another session has given the last one a session
			return
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

// leave removes a queued call.
func (g *group) leave(c *modernCall) {
	g.waiting = slices.DeleteFunc(g.waiting, func(other *modernCall) bool { return other == c })
}

// open begins another session for a client with this info; nil if there is no room.
func (g *group) open(info json.RawMessage) *legacySession {
	number, ok := g.a.numberLocked()
	if !ok || !g.a.life.begin() {
		return nil
	}
	l := newLegacySession(g, number, info)
	g.a.hold()
	g.a.sessions[number] = l
	g.sessions = append(g.sessions, l)
	go l.run() // Bridge.wg waits for it
	return l
}

// remove removes a session that has ended.
func (g *group) remove(l *legacySession) {
	g.sessions = slices.DeleteFunc(g.sessions, func(other *legacySession) bool { return other == l })
}

// makeRoom ends suspended calls, the oldest first, if queued calls need their sessions. If none was suspended for
// long enough, makeRoom runs again when one will be.
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

// emptying returns the number of sessions that only hold cancelled calls, and so will soon be free.
func (g *group) emptying() (n int) {
	for _, l := range g.sessions {
		if since, serves := l.suspendedSince(); since.IsZero() && !serves {
			n++
		}
	}
	return n
}

// longestSuspended returns the session that has held only suspended calls for the longest time, and since when;
// nil if there is none.
func (g *group) longestSuspended() (longest *legacySession, since time.Time) {
	for _, l := range g.sessions {
		at, serves := l.suspendedSince()
		if !serves && !at.IsZero() && (longest == nil || at.Before(since)) {
			longest, since = l, at
		}
	}
	return longest, since
}
