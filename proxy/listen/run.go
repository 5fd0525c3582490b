package listen

import (
	"context"
	"maps"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

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
		if deadline != nil && (sub.allAnswered() || late && !sub.awaitsStart()) {
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
			if !late && sub.awaitsStart() {
				late, deadline = true, time.After(sub.subs.StartWithin-AckWithin)
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
