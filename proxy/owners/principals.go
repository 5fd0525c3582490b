package owners

import (
	linked "container/list"
	"crypto/sha256"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

const (
	// maxOwned bounds the things of one principal, maxOwnedInAll those of all. When the first is
	// reached, the oldest thing of the principal is forgotten; when the second is, all things of
	// the principal that was given nothing for the longest time. A forgotten thing is unknown to
	// everybody.
	maxOwned      = 1024
	maxOwnedInAll = 1 << 18
)

// Principals record what upstreams gave to principals: ids of tasks, and the states of suspended
// calls. A modern server has one process for all clients, and a remote one knows only the proxy:
// both accept an id or a state from everybody. So if clients may be different principals, none may
// use what another one was given.
type Principals struct {
	mu     sync.Mutex // guards the fields below, and all ownedSets
	of     map[identity.Principal]*linked.Element
	recent linked.List // of *ownedSet; least recently used first
	count  int         // of things in all ownedSets
}

// An ownedSet has the things of one principal.
type ownedSet struct {
	who    identity.Principal
	things map[catalog.Digest]struct{}
	order  []catalog.Digest // oldest first
}

// A Kind is a kind of things.
type Kind string

const (
	OfTask  Kind = "task"
	OfState Kind = "state"
)

// Digest returns the key of a thing that an upstream, at a link, has given.
func (t Kind) Digest(link, upstream, text string) catalog.Digest {
	// None of the first three contains NUL.
	return sha256.Sum256([]byte(string(t) + "\x00" + link + "\x00" + upstream + "\x00" + text))
}

// Add notes that a principal was given a thing.
func (b *Principals) Add(who identity.Principal, d catalog.Digest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of[who]
	if e == nil {
		e = b.recent.PushBack(&ownedSet{who: who, things: make(map[catalog.Digest]struct{})})
		if b.of == nil {
			b.of = make(map[identity.Principal]*linked.Element)
		}
		b.of[who] = e
	}
	b.recent.MoveToBack(e)
	h := e.Value.(*ownedSet)
	if _, ok := h.things[d]; ok {
		return
	}
	if len(h.order) >= maxOwned {
		delete(h.things, h.order[0])
		h.order = h.order[1:]
		b.count--
	}
	h.things[d] = struct{}{}
	h.order = append(h.order, d)
	b.count++
	if b.count > maxOwnedInAll {
		b.forgetLocked(b.recent.Front())
	}
}

func (b *Principals) forgetLocked(e *linked.Element) {
	h := b.recent.Remove(e).(*ownedSet)
	delete(b.of, h.who)
	b.count -= len(h.order)
}

// Has reports whether a principal was given a thing.
func (b *Principals) Has(who identity.Principal, d catalog.Digest) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of[who]
	if e == nil {
		return false
	}
	_, ok := e.Value.(*ownedSet).things[d]
	return ok
}
