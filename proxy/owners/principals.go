package owners

import (
	linked "container/list"
	"crypto/sha256"
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
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
	recent linked.List                  // of *ownedSet; least recently used first
	count  int                          // of things in all ownedSets, by their weight
	only   map[catalog.Digest]*ownedSet // of the tasks that were added alone
}

// An ownedSet has the things of one principal.
type ownedSet struct {
	who    identity.Principal
	things map[catalog.Digest]string // the tool of a task; "" for a state
	order  []catalog.Digest          // oldest first
	count  int                       // of things, by their weight
}

// weight is how many things one counts as: long names of tools need room.
func weight(tool string) int { return 1 + len(tool)/256 }

// A Kind is a kind of things.
type Kind string

const (
	OfTask  Kind = "task"
	OfState Kind = "state"
)

// Digest returns the key of a thing that an upstream, at a link, has given to a client of an era.
func (t Kind) Digest(link, upstream string, era mcp.Era, text string) catalog.Digest {
	// None of the first four contains NUL.
	return sha256.Sum256([]byte(string(t) + "\x00" + link + "\x00" + upstream + "\x00" + string(era) + "\x00" + text))
}

// Add notes that a principal was given a thing.
func (b *Principals) Add(who identity.Principal, d catalog.Digest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addLocked(who, d, "")
}

// AddTask notes that a principal was given a task of a tool. If alone is true all principals have one server, for
// which an id is one task. So the task of a principal that was given the id before is gone, as after a restart of
// a server that counts its tasks, and that principal must not get this one.
func (b *Principals) AddTask(who identity.Principal, d catalog.Digest, tool string, alone bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if before := b.only[d]; before != nil && before.who != who {
		if b.removeLocked(before, d); len(before.order) == 0 {
			b.forgetLocked(b.of[before.who])
		}
	}
	if h := b.addLocked(who, d, tool); alone {
		if b.only == nil {
			b.only = make(map[catalog.Digest]*ownedSet)
		}
		b.only[d] = h
	}
}

func (b *Principals) addLocked(who identity.Principal, d catalog.Digest, tool string) *ownedSet {
	e := b.of[who]
	if e == nil {
		e = b.recent.PushBack(&ownedSet{who: who, things: make(map[catalog.Digest]string)})
		if b.of == nil {
			b.of = make(map[identity.Principal]*linked.Element)
		}
		b.of[who] = e
	}
	b.recent.MoveToBack(e)
	h := e.Value.(*ownedSet)
	if had, ok := h.things[d]; ok {
		if had == tool {
			return h
		}
		b.removeLocked(h, d) // it is another one with the same id
	}
	for h.count+weight(tool) > maxOwned {
		b.removeLocked(h, h.order[0])
	}
	h.things[d] = tool
	h.order = append(h.order, d)
	h.count += weight(tool)
	b.count += weight(tool)
	for b.count > maxOwnedInAll {
		b.forgetLocked(b.recent.Front())
	}
	return h
}

func (b *Principals) removeLocked(h *ownedSet, d catalog.Digest) {
	n := weight(h.things[d])
	h.count -= n
	b.count -= n
	delete(h.things, d)
	if i := slices.Index(h.order, d); i == 0 {
		h.order = h.order[1:]
	} else {
		h.order = slices.Delete(h.order, i, i+1)
	}
	b.noLongerLocked(h, d)
}

func (b *Principals) noLongerLocked(h *ownedSet, d catalog.Digest) {
	if b.only[d] == h {
		delete(b.only, d)
	}
}

func (b *Principals) forgetLocked(e *linked.Element) {
	h := b.recent.Remove(e).(*ownedSet)
	delete(b.of, h.who)
	b.count -= h.count
	for _, d := range h.order {
		b.noLongerLocked(h, d)
	}
}

// Has reports whether a principal was given a thing.
func (b *Principals) Has(who identity.Principal, d catalog.Digest) bool {
	_, ok := b.get(who, d)
	return ok
}

// Tool returns the tool of a task that a principal was given, "" if it is unknown.
func (b *Principals) Tool(who identity.Principal, d catalog.Digest) string {
	tool, _ := b.get(who, d)
	return tool
}

func (b *Principals) get(who identity.Principal, d catalog.Digest) (tool string, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.of[who]
	if e == nil {
		return "", false
	}
	tool, ok = e.Value.(*ownedSet).things[d]
	return tool, ok
}
