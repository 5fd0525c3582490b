package pool

import (
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"

	"maps"
	"slices"
	"time"
)

// minPark is how long a call is surely parked. It is far more than a program takes to
// answer, and time for a user to read a form. After it a call still may be parked for
// ParkFor, but not when others need what it holds, since clients that closed a dialog
// never come back, and nobody can tell them from those that think: the oldest ends as if
// its time were over.
const minPark = 30 * time.Second

// roomLocked ends parked calls, the oldest first, as calls that wait need their lanes. Of
// lanes that are parked too briefly the next is looked at when it is time.
func (g *group) roomLocked() {
	for need := len(g.waiting) - g.emptyingLocked(); need > 0; need-- {
		l, since := g.longestParkedLocked()
		if l == nil {
			return
		}
		if wait := minPark - time.Since(since); wait > 0 {
			g.roomIn(wait)
			return
		}
		l.endParksLocked()
	}
}

// roomIn has roomLocked called later.
func (g *group) roomIn(wait time.Duration) {
	g.room.Stop()
	g.room = g.t.after(wait, g.roomLocked)
}

// emptyingLocked returns how many lanes will soon be free, as nothing but cancelled
// calls is in them.
func (g *group) emptyingLocked() (n int) {
	for _, l := range g.lanes {
		if since, serves := l.parkedLocked(); since.IsZero() && !serves {
			n++
		}
	}
	return n
}

// longestParkedLocked returns the lane that has been of use to parked calls alone for
// the longest time, and since when; nil for none.
func (g *group) longestParkedLocked() (longest *lane, since time.Time) {
	for _, l := range g.lanes {
		at, serves := l.parkedLocked()
		if !serves && !at.IsZero() && (longest == nil || at.Before(since)) {
			longest, since = l, at
		}
	}
	return longest, since
}

// parkedLocked reports whether the lane works for a client that waits. If it does not,
// since is when the newest of its parked calls was parked; zero if there is none.
func (l *lane) parkedLocked() (since time.Time, serves bool) {
	n := 0
	for c := range l.calls {
		switch {
		case !mcp.MethodOf(c.method).Works:
			continue
		case c.state == parked && c.park.since.After(since):
			since = c.park.since
		case c.state == forwarded:
			return since, true
		}
		n++
	}
	return since, n < l.working // some are not sent yet
}

// endParksLocked ends the parked calls of a lane.
func (l *lane) endParksLocked() {
	for c := range l.calls {
		if c.state == parked {
			c.park.giveUpLocked()
		}
	}
}

// spareLocked returns a lane that others can do without: the longest idle, or else one
// that has been parked for long enough; nil for none.
func (t *tenant) spareLocked() *lane {
	if idle := t.longestIdleLocked(); idle != nil {
		return idle
	}
	var spare *lane
	var since time.Time
	for _, g := range t.groups {
		l, at := g.longestParkedLocked()
		if l != nil && time.Since(at) >= minPark && l.onlyWorksLocked() && (spare == nil || at.Before(since)) {
			spare, since = l, at
		}
	}
	return spare
}

// onlyWorksLocked reports whether nobody uses the lane but for calls that work.
func (l *lane) onlyWorksLocked() bool {
	return l.state == laneReady && len(l.calls) == l.working && len(l.listens) == 0
}

// oldestParkLocked returns the oldest park of some, if it is old enough to be ended;
// else nil.
func (t *tenant) oldestParkLocked(some func(*park) bool) (oldest *park) {
	for _, p := range t.parks {
		inUse := p.call != nil && p.call.state != parked
		if !inUse && time.Since(p.since) >= minPark && (oldest == nil || p.since.Before(oldest.since)) && some(p) {
			oldest = p
		}
	}
	return oldest
}

// giveUpLocked ends the call of a park before its time.
func (p *park) giveUpLocked() {
	p.t.b.logger().Debug("parked call ended early: others need its session", "upstream", p.t.id.upstream)
	p.endLocked(errNoInput)
}

// Unattributed has the bridge know that an upstream whose one server is shared by all
// sessions asked something that could belong to calls of more than one of them. Then
// a call ends that has long waited for its client, the oldest of each key: one that nobody
// comes back to would keep the server from asking anybody. It calls nothing of the host's,
// so that locks may be held.
func (b *Bridge) Unattributed(upstream string) {
	for _, t := range b.pool.tenantsOf(upstream) {
		t.mu.Lock()
		if p := t.oldestParkLocked(func(p *park) bool { return p.call != nil && p.call.lane != nil }); p != nil {
			p.giveUpLocked()
		}
		t.mu.Unlock()
	}
}

// Parked returns how many calls legacy servers have not answered, but no client waits for
// either: each was told to come back with what its server asks.
func (b *Bridge) Parked() (n int) {
	for _, t := range b.pool.all() {
		t.mu.Lock()
		for _, p := range t.parks {
			if p.call != nil && p.call.state == parked && p.call.lane != nil {
				n++
			}
		}
		t.mu.Unlock()
	}
	return n
}

// tenantsOf returns the tenants on an upstream.
func (p *pool) tenantsOf(upstream string) (all []*tenant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, t := range p.tenants {
		if id.upstream == upstream {
			all = append(all, t)
		}
	}
	return all
}

func (p *pool) all() []*tenant {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.tenants))
}
