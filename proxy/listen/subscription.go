package listen

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A Subscription is one subscriptions/listen of the client.
type Subscription struct {
	// Static after construction.
	subs   *Subscriptions
	client Client
	id     jsonrpc.ID // of the client's request
	want   mcp.Filter
	meta   json.RawMessage // _meta of the requests to upstreams
	over   chan struct{}   // closed by end, to end it with its result
	end    func()          // may be called repeatedly
	poked  chan struct{}   // to Run: something that it looks at has changed; never closed
	passed chan struct{}   // closed when the messages before the acknowledgment were passed

	// Owned by Run.
	sole    bool           // it was last split over a sole upstream
	running sync.WaitGroup // its parts

	// Guarded by subs.mu.
	parts     map[Upstream]*part  // nil before it was split
	acked     bool                // the acknowledgment was sent
	told      mcp.Filter          // the acknowledged filter; nothing else is delivered
	early     []*jsonrpc.Message  // messages before the acknowledgment
	bytes     int                 // size of early
	lists     [catalog.Kinds]bool // list_changed held back
	updated   map[string]bool     // URIs whose updates may have been missed, held back
	holdUntil time.Time           // see Returned
}

const (
	// MaxEarly bounds the messages of a subscription that wait for its acknowledgment. More are
	// dropped.
	MaxEarly = 1024

	// AckWithin bounds the wait for the acknowledgments of upstreams, but for those that may still
	// accept more of the subscription: see awaitsMore.
	AckWithin = 500 * time.Millisecond

	// debounce is how long a change is held back for others to join it. Clients are promised less
	// than 100 ms.
	debounce = 50 * time.Millisecond
)

// poke wakes Run. It does not wait.
func (sub *Subscription) poke() {
	select {
	case sub.poked <- struct{}{}:
	default:
	}
}

// allAnswered reports whether all upstreams have acknowledged or refused.
func (sub *Subscription) allAnswered() bool {
	sub.subs.mu.Lock()
	defer sub.subs.mu.Unlock()
	for _, part := range sub.parts {
		if !part.answered {
			return false
		}
	}
	return true
}

// awaitsMore reports whether an upstream may still accept a resource or a task that no other has
// accepted. Without it in the acknowledgment, the client would get no notification of it.
func (sub *Subscription) awaitsMore() bool {
	accepted, base := sub.honoured()
	if len(accepted.URIs) == len(sub.want.URIs) && len(accepted.Tasks) == len(sub.want.Tasks) && (base != nil || sub.want.Unknown() == nil) {
		return false
	}
	sub.subs.mu.Lock()
	defer sub.subs.mu.Unlock()
	for _, part := range sub.parts {
		if !part.answered && !part.failed && !part.want.OnlyLists() {
			return true
		}
	}
	return false
}

// acknowledge sends the client the acknowledgment, and then the messages that came before it.
func (sub *Subscription) acknowledge() {
	told, base := sub.honoured()
	sub.send(mcp.MethodAcknowledged, jsonrpc.Value{Key: "notifications", Text: told.On(base)})
	sub.subs.mu.Lock()
	early := sub.early
	sub.acked, sub.told, sub.early = true, told, nil
	sub.subs.mu.Unlock()
	for _, m := range early {
		sub.passTold(m)
	}
	close(sub.passed)
}

// honoured returns the filter to acknowledge, and its base text. Of resources and tasks it has
// those that upstreams have accepted so far; later ones are not notified. Changes of lists are as
// the client asked, because the session reports those of upstreams that come and go. But a single
// upstream's acknowledgment is forwarded verbatim.
func (sub *Subscription) honoured() (f mcp.Filter, base json.RawMessage) {
	uris, tasks := make(map[string]bool), make(map[string]bool)
	f.Lists = sub.want.Lists
	for at, accepted := range sub.accepted() {
		for _, uri := range accepted.URIs {
			uris[uri] = true
		}
		for _, id := range accepted.Tasks {
			tasks[id], tasks[sub.client.TaskName(at, id)] = true, true
		}
		if sub.sole && accepted.As != nil {
			base = accepted.As
			for k, yes := range accepted.Lists {
				f.Lists[k] = f.Lists[k] && yes
			}
		}
		if !sub.sole {
			base = sub.addUnknown(base, accepted)
		}
	}
	f.URIs, f.Tasks = among(sub.want.URIs, uris), among(sub.want.Tasks, tasks)
	return f, base
}

// addUnknown adds what an upstream has acknowledged of the members of the client's filter that the
// proxy does not know. Of several acknowledgments of one member, that with the client's own value counts.
func (sub *Subscription) addUnknown(base json.RawMessage, accepted mcp.Filter) json.RawMessage {
	unknown := accepted.Unknown()
	if unknown == nil {
		return base
	}
	_ = jsonrpc.Each(sub.want.Unknown(), func(key string, asked json.RawMessage) { // it was read before
		given, _ := jsonrpc.Member(unknown, key)
		if had, _ := jsonrpc.Member(base, key); given != nil && (had == nil || string(given) == string(asked)) {
			base = jsonrpc.Set(base, jsonrpc.Value{Key: key, Text: given})
		}
	})
	return base
}

// accepted returns the filters that the upstreams have acknowledged.
func (sub *Subscription) accepted() map[Upstream]mcp.Filter {
	sub.subs.mu.Lock()
	defer sub.subs.mu.Unlock()
	found := make(map[Upstream]mcp.Filter, len(sub.parts))
	for at, part := range sub.parts {
		found[at] = part.honoured
	}
	return found
}

// among returns the texts that are in a set.
func among(texts []string, set map[string]bool) (found []string) {
	for _, t := range texts {
		if set[t] {
			found = append(found, t)
		}
	}
	return found
}

// change notifies the client of changes of lists.
func (sub *Subscription) change(lists [catalog.Kinds]bool) {
	sub.subs.mu.Lock()
	defer sub.subs.mu.Unlock()
	sub.changeLocked(lists)
	sub.poke()
}

// changeLocked is change without waking Run.
func (sub *Subscription) changeLocked(lists [catalog.Kinds]bool) {
	for k, yes := range lists {
		k := min(catalog.Kind(k), catalog.Resources) // there is one notification for both
		sub.lists[k] = sub.lists[k] || yes
	}
}

// missedLocked notes changes of lists and resources that the client may have missed. The caller must
// wake Run.
func (sub *Subscription) missedLocked(lists [catalog.Kinds]bool, uris []string) {
	sub.changeLocked(lists)
	for _, uri := range uris {
		if sub.updated == nil {
			sub.updated = make(map[string]bool)
		}
		sub.updated[uri] = true
	}
}

func (sub *Subscription) holdsChanges() bool {
	sub.subs.mu.Lock()
	defer sub.subs.mu.Unlock()
	return sub.lists != [catalog.Kinds]bool{} || sub.updated != nil
}

// hold returns a channel that receives when changes need no longer be held back, nil for now.
func (sub *Subscription) hold() <-chan time.Time {
	sub.subs.mu.Lock()
	defer sub.subs.mu.Unlock()
	if wait := time.Until(sub.holdUntil); wait > 0 {
		return time.After(wait + debounce)
	}
	return nil
}

// sendChanges sends the changes that were held back.
func (sub *Subscription) sendChanges() {
	sub.subs.mu.Lock()
	lists, updated, told := sub.lists, sub.updated, sub.told
	sub.lists, sub.updated = [catalog.Kinds]bool{}, nil
	sub.subs.mu.Unlock()
	for k, yes := range lists {
		if yes && told.Lists[k] {
			sub.send(catalog.Kind(k).Changed())
		}
	}
	for _, uri := range among(told.URIs, updated) {
		sub.send(mcp.MethodResourceUpdated, jsonrpc.Value{Key: "uri", Text: jsonrpc.Quote(uri)})
	}
}

// send sends a notification of the subscription.
func (sub *Subscription) send(method string, params ...jsonrpc.Value) {
	sub.client.Tell(sub.own(jsonrpc.NewNotification(method, jsonrpc.Set(nil, params...))))
}

// own returns a copy of a notification that belongs to this subscription.
func (sub *Subscription) own(m *jsonrpc.Message) *jsonrpc.Message {
	out := *m
	out.Params = mcp.SetMeta(m.Params, jsonrpc.Value{Key: mcp.KeySubscription, Text: sub.id.Raw()})
	out.Related = sub.id
	return &out
}

// pass forwards a notification of an upstream, if asked is true.
func (sub *Subscription) pass(m *jsonrpc.Message, asked bool) {
	if !asked {
		sub.client.Drop("not requested", m)
		return
	}
	m = sub.own(m)
	sub.subs.mu.Lock()
	early := !sub.acked
	room := len(sub.early) < MaxEarly && sub.bytes+m.Size() <= sub.subs.EarlyBytes
	if early && room {
		sub.early = append(sub.early, m)
		sub.bytes += m.Size()
	}
	sub.subs.mu.Unlock()
	switch {
	case !early:
		<-sub.passed // of the same upstream, perhaps
		sub.passTold(m)
	case !room:
		sub.client.Drop("the subscription is not acknowledged", m)
	}
}

// passTold forwards a notification that the acknowledgment covers.
func (sub *Subscription) passTold(m *jsonrpc.Message) {
	sub.subs.mu.Lock()
	told := sub.told
	sub.subs.mu.Unlock()
	if !told.Covers(m, &sub.want) {
		sub.client.Drop("it was not acknowledged", m)
		return
	}
	sub.client.Tell(m)
}

// Subscriptions are the open subscriptions/listen of a client.
type Subscriptions struct {
	// Static after construction.
	Most         int           // bound on open ones
	EarlyBytes   int           // bound on the messages of each that wait for its acknowledgment
	AcceptWithin time.Duration // bounds the wait of an acknowledgment for upstreams that may accept more of it

	mu     sync.Mutex // guards the fields below, subscriptions and their parts
	open   map[*Subscription]struct{}
	ending bool // no subscription is to stay open
}

// Forget makes room for another subscription.
func (sub *Subscription) Forget() {
	sub.subs.mu.Lock()
	defer sub.subs.mu.Unlock()
	delete(sub.subs.open, sub)
}
