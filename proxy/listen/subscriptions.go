package listen

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// Begin returns a new subscription; nil if there is no room for it. The caller must call Run or
// Forget. The meta is copied into the requests to upstreams.
func (subs *Subscriptions) Begin(id jsonrpc.ID, want mcp.Filter, meta json.RawMessage, client Client) *Subscription {
	over := make(chan struct{})
	sub := &Subscription{
		subs: subs, client: client, id: id, want: want, meta: meta,
		over: over, end: sync.OnceFunc(func() { close(over) }), poked: make(chan struct{}, 1), passed: make(chan struct{}),
	}
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

// Len returns how many subscriptions are open.
func (subs *Subscriptions) Len() int {
	subs.mu.Lock()
	defer subs.mu.Unlock()
	return len(subs.open)
}

// End ends all subscriptions with their results, because they would delay the end of the session.
func (subs *Subscriptions) End() {
	subs.mu.Lock()
	subs.ending = true
	subs.mu.Unlock()
	subs.EndOpen()
}

// EndOpen ends all subscriptions that are open with their results.
func (subs *Subscriptions) EndOpen() {
	subs.mu.Lock()
	defer subs.mu.Unlock()
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

// Run serves the subscription until ctx ends, which is its cancellation, or it is over.
func (sub *Subscription) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer sub.Forget()
	defer sub.running.Wait()
	defer cancel()
	deadline := time.After(AckWithin)
	late := false              // AckWithin is over
	var flush <-chan time.Time // nil while nothing is held back
	sub.follow(ctx)
	for {
		if deadline != nil && (sub.allAnswered() || late && !sub.awaitsMore()) {
			deadline = nil
			sub.acknowledge()
		}
		if flush == nil && deadline == nil && sub.holdsChanges() {
			flush = time.After(debounce)
		}
		select {
		case <-ctx.Done():
			return
		case <-sub.over:
			if deadline != nil {
				sub.acknowledge()
			}
			sub.client.End()
			return
		case <-deadline:
			if !late && sub.awaitsMore() {
				late, deadline = true, time.After(sub.subs.AcceptWithin-AckWithin)
				continue
			}
			deadline = nil
			sub.acknowledge()
		case <-flush:
			if flush = sub.hold(); flush == nil {
				sub.sendChanges()
			}
		case <-sub.poked:
			sub.follow(ctx)
		}
	}
}

// follow splits the subscription again if the upstreams have changed. Parts that stay the same are
// not affected. If no upstream is left or expected, the subscription ends.
func (sub *Subscription) follow(ctx context.Context) {
	split, changed := sub.client.Split(ctx)
	if !changed {
		return
	}
	sub.sole = split.Sole
	sub.subs.mu.Lock()
	defer sub.subs.mu.Unlock()
	first := sub.parts == nil
	if first {
		sub.parts = make(map[Upstream]*part)
	}
	maps.DeleteFunc(sub.parts, func(at Upstream, part *part) bool {
		want, ok := split.Parts[at]
		if ok && want.Equal(&part.want) {
			return false
		}
		part.stop()
		return true
	})
	for at, want := range split.Parts {
		if sub.parts[at] == nil {
			sub.parts[at] = sub.begin(ctx, at, want, !first)
		}
	}
	if first {
		return
	}
	if !split.Same {
		sub.changeLocked(sub.want.Lists)
	}
	if split.None {
		sub.end()
	}
}

// begin begins the part of an upstream. If missed, the client is notified when the upstream listens.
func (sub *Subscription) begin(ctx context.Context, at Upstream, want mcp.Filter, missed bool) *part {
	ctx, cancel := context.WithCancel(ctx)
	part := &part{sub: sub, at: at, want: want, stop: cancel, wake: make(chan time.Duration, 1), missed: missed}
	sub.running.Go(func() {
		defer cancel()
		part.run(ctx)
	})
	return part
}
