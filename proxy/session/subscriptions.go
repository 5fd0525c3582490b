package session

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// subscriptions are the open subscriptions of a session.
type subscriptions struct {
	mu     sync.Mutex // guards the fields below, subscriptions and their parts; may be taken with session.mu held, never the other way
	most   int        // bound on open ones
	open   map[*subscription]struct{}
	ending bool // the session drains
}

// begin adds a subscription, if there is room.
func (subs *subscriptions) begin(sub *subscription) bool {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	if len(subs.open) >= subs.most {
		return false
	}
	put(&subs.open, sub, struct{}{})
	if subs.ending { // since the request began
		sub.endLocked()
	}
	return true
}

func (subs *subscriptions) forget(sub *subscription) {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	delete(subs.open, sub)
}

func (subs *subscriptions) len() int {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	return len(subs.open)
}

// end ends all subscriptions, which would otherwise delay the end of the session.
func (subs *subscriptions) end() {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	subs.ending = true
	for sub := range subs.open {
		sub.endLocked()
	}
}

// all returns the open subscriptions.
func (subs *subscriptions) all() []*subscription {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	return slices.Collect(maps.Keys(subs.open))
}

// regrant notifies a subscription that its client's grant has changed, and with it lists.
func (subs *subscriptions) regrant(sub *subscription, lists [catalog.Kinds]bool) {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	sub.changeLocked(lists)
	sub.poke()
}

// follow makes all subscriptions follow the current upstreams.
func (subs *subscriptions) follow() {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	for sub := range subs.open {
		sub.poke()
	}
}

// partsLocked returns the parts of an upstream in all subscriptions.
func (subs *subscriptions) partsLocked(u *upstreamConn) (parts []*subscriptionPart) {
	for sub := range subs.open {
		if part := sub.parts[u]; part != nil {
			parts = append(parts, part)
		}
	}
	return parts
}

// resume ends the pauses of all parts of an upstream, because it is ready.
func (subs *subscriptions) resume(u *upstreamConn) {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	for _, part := range subs.partsLocked(u) {
		part.resume(0)
	}
}

// listsOnly returns how many listens are open at an upstream that are only for changes of lists.
// They do not keep a lazy upstream awake.
func (subs *subscriptions) listsOnly(u *upstreamConn) (n int) {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	for _, part := range subs.partsLocked(u) {
		if part.want.OnlyLists() && part.stopListening != nil {
			n++
		}
	}
	return n
}

// doze ends these listens, and reports whether there were any.
func (subs *subscriptions) doze(u *upstreamConn) (any bool) {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	for _, part := range subs.partsLocked(u) {
		if !part.want.OnlyLists() || part.stopListening == nil || part.dozing {
			continue
		}
		select {
		case <-part.wake: // it came while the part listened
		default:
		}
		part.dozing, any = true, true
		part.stopListening()
	}
	return any
}

// wakeDozing makes parts listen again whose upstream is in use after all.
func (subs *subscriptions) wakeDozing(u *upstreamConn) {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	for _, part := range subs.partsLocked(u) {
		if part.dozing {
			part.resume(0)
		}
	}
}

// returned makes the subscriptions listen again to upstreams that are back, all at the same time.
// The client is then notified once of all that it may have missed, however long the acknowledgments
// take.
func (subs *subscriptions) returned(conns []*upstreamConn) {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	after := rand.N(reopenWithin)
	for _, u := range conns {
		for _, part := range subs.partsLocked(u) {
			part.resume(after)
			if part.missed || part.rested {
				part.sub.holdUntil = time.Now().Add(after)
				part.tellMissedLocked()
			}
		}
	}
}

// changed notifies all subscriptions of a change of a list of an upstream.
func (subs *subscriptions) changed(u *upstreamConn, k catalog.Kind) {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	for _, part := range subs.partsLocked(u) {
		part.tellListLocked(k)
	}
}

// reopenWithin is the time over which sessions spread the opening of their streams when a link is
// back.
const reopenWithin = 500 * time.Millisecond
