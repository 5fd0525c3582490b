package lists

import (
	"context"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// changes are what the client has seen of merged lists, and how it is told that they have changed.
// They are of the legacy era: in the modern one a client subscribes.
type changes struct {
	ctx        context.Context // ends with the session
	wg         *sync.WaitGroup
	tellClient func(m *jsonrpc.Message) // waits for room

	mu        sync.Mutex          // guards the fields below and what is seen; nothing else is locked under it
	promised  [catalog.Kinds]bool // the client was told by initialize that it will hear of changes
	wanted    [catalog.Kinds]bool // which lists the client has asked for
	shown     [catalog.Kinds]bool // which of them it has seen
	held      [catalog.Kinds]bool // list_changed that are held back
	announced int                 // counts what made the client ask again, see announce
}

// shownLists is what the client has seen of the lists of one upstream.
type shownLists [catalog.Kinds]struct {
	digest    catalog.Digest
	announced int // changes.announced when the client was told of it; 0: has listed since
}

// debounce is how long a list_changed is held back for others to join it. It
// must stay well under the 100 ms that clients are promised.
const debounce = 50 * time.Millisecond

// Promise notes of which lists the client was told that it will hear of changes.
func (n *changes) Promise(lists [catalog.Kinds]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.promised = lists
}

// Want notes that the client asks for a merged list. What is announced from here on,
// which is after asOf, the client has to ask for again.
func (n *changes) Want(k catalog.Kind) (asOf int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wanted[k] = true
	return n.announced
}

// Showed notes what of an upstream the client sees in a merged list, which it asked for
// when want said asOf.
func (n *changes) Showed(u *Upstream, k catalog.Kind, digest catalog.Digest, asOf int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	of := &u.shown[k]
	of.digest = digest
	if of.announced <= asOf {
		of.announced = 0
	}
}

// Answered notes that the client has seen a list, or that there is none: whoever comes
// later is a change.
func (n *changes) Answered(k catalog.Kind) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shown[k] = true
}

// Announce tells the client that the lists which it has asked for are to be asked for
// again, because of these upstreams or of some that are gone: once for each kind,
// however many they are. Until the client has listed, a start of these upstreams is
// no news.
func (n *changes) Announce(upstreams []*Upstream) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.announced++
	for k := range catalog.Kinds {
		if !n.wanted[k] || !n.promised[k] {
			continue
		}
		for _, of := range upstreams {
			of.shown[k].announced = n.announced
		}
		n.tellLocked(k)
	}
}

// Unannounced returns the lists whose change would be news to the client.
func (u *Upstream) Unannounced() (lists [catalog.Kinds]bool) {
	n := &u.of.changes
	n.mu.Lock()
	defer n.mu.Unlock()
	for k := range lists {
		lists[k] = u.shown[k].announced == 0
	}
	return lists
}

// Matters reports whether the client waits for news of a list.
func (n *changes) Matters(k catalog.Kind) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.shown[k] && n.promised[k]
}

// compare tells the client if what an upstream lists differs from what it has seen.
func (n *changes) compare(u *Upstream, k catalog.Kind, digest catalog.Digest) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.shown[k] && n.promised[k] && u.shown[k].announced == 0 && digest != u.shown[k].digest {
		n.tellLocked(k)
	}
}

// TellWanted tells the client of the lists that it has asked for and that have changed.
func (n *changes) TellWanted(lists [catalog.Kinds]bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k, yes := range lists {
		if yes && n.wanted[k] && n.promised[k] {
			n.tellLocked(catalog.Kind(k))
		}
	}
}

// TellChanged sends one list_changed for all changes within the debounce.
func (n *changes) TellChanged(k catalog.Kind) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tellLocked(k)
}

func (n *changes) tellLocked(k catalog.Kind) {
	none := n.held == [catalog.Kinds]bool{}
	n.held[min(k, catalog.Resources)] = true // there is one notification for both
	if none && n.ctx.Err() == nil {
		n.wg.Go(n.flush)
	}
}

// flush sends what is held back when the debounce is over.
func (n *changes) flush() {
	select {
	case <-time.After(debounce):
	case <-n.ctx.Done():
		return
	}
	n.mu.Lock()
	held := n.held
	n.held = [catalog.Kinds]bool{}
	n.mu.Unlock()
	for k, yes := range held {
		if yes {
			n.tellClient(jsonrpc.NewNotification(catalog.Kind(k).Changed(), nil))
		}
	}
}
