package listen

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// An Upstream is the session's connection to one upstream server. Its values are compared.
type Upstream interface {
	// Listen sends a subscriptions/listen and returns the answer. receive gets the notifications
	// that belong to it. If ctx ends first, Listen cancels the request and returns an error.
	Listen(ctx context.Context, params json.RawMessage, receive func(*jsonrpc.Message)) (*jsonrpc.Message, error)

	IsIdle() bool              // it has no server, and needs none for changes of its lists
	IsStarting() bool          // it starts when it is needed, and its server has not answered yet
	TaskName(id string) string // the client's name of a task of the upstream
	Done() <-chan struct{}     // closed when the upstream was hung up
	Log() *slog.Logger
}

// A Client is the client of one subscription, as its session knows it.
type Client interface {
	// Split splits the subscription's filter over the current upstreams. It returns false if they
	// are the same as before.
	Split(ctx context.Context) (Split, bool)

	// Note notes a notification of an upstream before it is handled. It returns false if a policy
	// denies it to the client.
	Note(at Upstream, m *jsonrpc.Message) bool

	// Verify compares lists of a server that has started with those that the client got without it.
	Verify(at Upstream, lists [catalog.Kinds]bool)

	// Sees reports whether the client may see anything of a list of an upstream.
	Sees(at Upstream, k catalog.Kind) bool

	Tell(m *jsonrpc.Message)                // sends the client a message when there is room
	Drop(reason string, m *jsonrpc.Message) // counts a notification that the client does not get
	End()                                   // answers the client's request with its result
}

// A Split is the filter of a subscription, split over upstreams.
type Split struct {
	Parts map[Upstream]mcp.Filter
	Sole  bool // there is one upstream, whose acknowledgment is forwarded verbatim
	Same  bool // the client sees the same upstreams as before
	None  bool // no upstream is left or expected
}

// Subscriptions are the open subscriptions/listen of a client.
type Subscriptions struct {
	// Static after construction.
	Most        int           // bound on open ones
	EarlyBytes  int           // bound on the messages of each that wait for its acknowledgment
	StartWithin time.Duration // bounds the wait of an acknowledgment for upstreams that start for it

	mu     sync.Mutex // guards the fields below, subscriptions and their parts
	open   map[*Subscription]struct{}
	ending bool // no subscription is to stay open
}

// Begin returns a new subscription; nil if there is no room for it. The caller must call Run or
// Forget. The meta is copied into the requests to upstreams.
func (subs *Subscriptions) Begin(id jsonrpc.ID, want mcp.Filter, meta json.RawMessage, client Client) *Subscription {
	sub := newSubscription(subs, id, want, meta, client)
	subs.mu.Lock()
	defer subs.mu.Unlock()
	if len(subs.open) >= subs.Most {
		return nil
	}
	if subs.open == nil {
		subs.open = make(map[*Subscription]struct{})
	}
	subs.open[sub] = struct{}{}
	if subs.ending { // since the request began
		sub.end()
	}
	return sub
}

// Forget makes room for another subscription.
func (sub *Subscription) Forget() {
	sub.subs.mu.Lock()
	defer sub.subs.mu.Unlock()
	delete(sub.subs.open, sub)
}

// Len returns how many subscriptions are open.
func (subs *Subscriptions) Len() int {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	return len(subs.open)
}

// End ends all subscriptions with their results, because they would delay the end of the session.
func (subs *Subscriptions) End() {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	subs.ending = true
	for sub := range subs.open {
		sub.end()
	}
}

// Follow makes all subscriptions follow the current upstreams.
func (subs *Subscriptions) Follow() {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	for sub := range subs.open {
		sub.poke()
	}
}

// Regrant notifies each client of the lists that differ for it, because policies have changed.
func (subs *Subscriptions) Regrant(differing func(Client) [catalog.Kinds]bool) {
	subs.mu.Lock()
	open := slices.Collect(maps.Keys(subs.open))
	subs.mu.Unlock()
	for _, sub := range open {
		sub.change(differing(sub.client))
	}
}

// Changed notifies all clients that see a list of an upstream of a change of it.
func (subs *Subscriptions) Changed(at Upstream, k catalog.Kind) {
	subs.mu.Lock()
	parts := subs.partsLocked(at)
	subs.mu.Unlock()
	for _, part := range parts {
		part.listChanged(k)
	}
}

// partsLocked returns the parts of an upstream in all subscriptions.
func (subs *Subscriptions) partsLocked(at Upstream) (parts []*part) {
	for sub := range subs.open {
		if part := sub.parts[at]; part != nil {
			parts = append(parts, part)
		}
	}
	return parts
}

// Resume ends the pauses of all parts of an upstream, because it is ready.
func (subs *Subscriptions) Resume(at Upstream) {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	for _, part := range subs.partsLocked(at) {
		part.resume(0)
	}
}

// Returned makes the subscriptions listen again after a time to an upstream that is back. The client
// is notified once of all that it may have missed, however long the acknowledgment takes. It is
// notified only after that time, so that its requests because of it come after all upstreams that
// are back were asked to listen, and it misses nothing.
func (subs *Subscriptions) Returned(at Upstream, after time.Duration) {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	for _, part := range subs.partsLocked(at) {
		part.resume(after)
		if part.missed || part.rested {
			part.sub.holdUntil = time.Now().Add(after)
			part.tellMissedLocked()
		}
	}
}

// ListsOnly returns how many listens are open at an upstream that are only for changes of its lists.
// They do not keep it awake.
func (subs *Subscriptions) ListsOnly(at Upstream) (n int) {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	for _, part := range subs.partsLocked(at) {
		if part.want.OnlyLists() && part.stopListening != nil {
			n++
		}
	}
	return n
}

// Doze ends these listens, so that the upstream can rest, and reports whether there were any.
func (subs *Subscriptions) Doze(at Upstream) (any bool) {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	for _, part := range subs.partsLocked(at) {
		any = part.dozeLocked() || any
	}
	return any
}

// WakeDozing makes parts listen again whose upstream is in use after all.
func (subs *Subscriptions) WakeDozing(at Upstream) {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	for _, part := range subs.partsLocked(at) {
		if part.dozing {
			part.resume(0)
		}
	}
}
