package session

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A subscription is one subscriptions/listen of the client, split over the upstreams. Its goroutine
// runs run. Each part has its own goroutine.
type subscription struct {
	// Static after construction.
	s        *session
	c        *request
	want     mcp.Filter
	meta     json.RawMessage // _meta of the client's request, copied into those of the parts
	identity json.RawMessage // see request.identity
	who      *identity.Identity
	over     chan struct{} // closed once, to end it with its result
	poked    chan struct{} // to run: the fields guarded by subscriptions.mu have changed; never closed

	// Owned by run.
	upstreams *upstreamSet // over which it is split

	// Guarded by subscriptions.mu.
	parts     map[*upstreamConn]*subscriptionPart
	ending    bool                // over is closed
	told      mcp.Filter          // the acknowledged filter; nothing else is delivered
	early     []*jsonrpc.Message  // messages before the acknowledgment
	bytes     int                 // size of early
	lists     [catalog.Kinds]bool // list_changed held back
	updated   map[string]bool     // URIs whose updates may have been missed, held back
	holdUntil time.Time           // changes are held back until then, when returned upstreams are asked to listen
}

const (
	// maxEarly bounds the messages that are kept until a subscription is acknowledged. Their bytes
	// are bounded like those of a queue. More are dropped.
	maxEarly = 1024

	// ackWithin bounds the wait for the acknowledgments of upstreams. Before it, up to ownersWithin
	// is spent to find the upstreams of the resources.
	ackWithin    = 500 * time.Millisecond
	debounce     = 50 * time.Millisecond // of changes
	ownersWithin = 200 * time.Millisecond
)

// listen begins a subscriptions/listen.
func (s *session) listen(r *request) *jsonrpc.Error {
	want, err := mcp.ReadFilter(r.notes)
	if err == nil {
		err = r.notes.Err(mcp.InMeta, mcp.Token)
	}
	switch {
	case err != nil:
		return jsonrpc.InvalidParams(err.Error())
	case want.Tasks != nil && !r.tasks:
		return errNoTasks
	case !s.confine(r, &want):
		return nil
	}
	sub := &subscription{s: s, c: r, want: want,
		meta: bytes.Clone(r.notes.Raw(mcp.InMeta)), identity: r.identity(), who: cmp.Or(r.msg.From, s.who),
		over: make(chan struct{}), poked: make(chan struct{}, 1), parts: make(map[*upstreamConn]*subscriptionPart)}
	size := len(r.msg.Params)
	r.msg, r.notes = nil, nil
	if !s.keep(r, size) || !s.subscriptions.begin(sub) {
		return jsonrpc.Overloaded("")
	}
	if !s.work(r, sub.run) {
		s.subscriptions.forget(sub)
	}
	return nil
}

// grant returns the client's current grant.
func (sub *subscription) grant() *policy.Grant { return sub.s.router.Policies.For(sub.who) }

// run serves the subscription until it is cancelled, the session ends, or it is over.
func (sub *subscription) run(ctx context.Context) {
	defer sub.s.subscriptions.forget(sub)
	deadline := time.After(ackWithin)
	var flush <-chan time.Time // nil while nothing is held back
	sub.follow(ctx)
	for {
		if deadline != nil && sub.allAnswered() {
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
			sub.finish(deadline != nil)
			return
		case <-deadline:
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

// poke wakes run. It does not wait.
func (sub *subscription) poke() {
	select {
	case sub.poked <- struct{}{}:
	default:
	}
}

// endLocked ends the subscription with its result.
func (sub *subscription) endLocked() {
	if !sub.ending {
		sub.ending = true
		close(sub.over)
	}
}

// finish answers the subscription, after its acknowledgment.
func (sub *subscription) finish(unacknowledged bool) {
	if unacknowledged {
		sub.acknowledge()
	}
	sub.s.settle(sub.c, sub.c.over(sub.upstreams))
}

// over returns the result of a subscription that was last split over set.
func (r *request) over(set *upstreamSet) *jsonrpc.Message {
	says := []jsonrpc.Value{r.subscriptionMember()}
	if set.only() == nil {
		says = append(says, jsonrpc.Value{Key: mcp.KeyServerInfo, Text: set.s.router.serverInfo()})
	}
	return jsonrpc.NewResult(r.ID, mcp.SetMeta(json.RawMessage(`{"resultType":"complete"}`), says...))
}

// subscriptionMember returns the member of _meta that every message of a subscription has.
func (r *request) subscriptionMember() jsonrpc.Value {
	return jsonrpc.Value{Key: mcp.KeySubscription, Text: r.ID.Raw()}
}

// follow splits the subscription again if the set of upstreams has changed. Parts that stay the
// same are not affected. If no upstream is left or expected, the subscription ends.
func (sub *subscription) follow(ctx context.Context) {
	set := sub.s.upstreams.of(mcp.Modern).visibleTo(sub.grant())
	first := sub.upstreams == nil
	if set == sub.upstreams {
		return
	}
	wants := sub.split(ctx, set)
	hidden := sub.grant() != nil && !first && set.equal(sub.upstreams) // only visibility has changed
	sub.upstreams = set
	sub.s.subscriptions.mu.Lock()
	defer sub.s.subscriptions.mu.Unlock()
	maps.DeleteFunc(sub.parts, func(u *upstreamConn, part *subscriptionPart) bool {
		want, ok := wants[u]
		if ok && want.Equal(&part.want) {
			return false
		}
		part.stop()
		return true
	})
	for u, want := range wants {
		if sub.parts[u] == nil {
			sub.parts[u] = sub.partLocked(ctx, u, want, !first)
		}
	}
	if first {
		return
	}
	if !hidden {
		sub.changeLocked(sub.want.Lists)
	}
	if len(set.conns) == 0 && set.complete {
		sub.endLocked()
	}
}

// partLocked begins the part of an upstream.
func (sub *subscription) partLocked(ctx context.Context, u *upstreamConn, want mcp.Filter, missed bool) *subscriptionPart {
	ctx, cancel := context.WithCancel(ctx)
	part := &subscriptionPart{sub: sub, conn: u, want: want, stop: cancel, wake: make(chan time.Duration, 1), missed: missed}
	sub.s.wg.Go(func() {
		defer cancel()
		part.run(ctx)
	})
	return part
}

// allAnswered reports whether all upstreams have acknowledged or refused.
func (sub *subscription) allAnswered() bool {
	sub.s.subscriptions.mu.Lock()
	defer sub.s.subscriptions.mu.Unlock()
	for _, part := range sub.parts {
		if !part.answered {
			return false
		}
	}
	return true
}

// acknowledge sends the client the acknowledgment, and then the messages that came before it.
func (sub *subscription) acknowledge() {
	told, base := sub.honoured()
	params := jsonrpc.Set(nil, jsonrpc.Value{Key: "notifications", Text: told.On(base)})
	sub.c.acking.Store(true)
	sub.send(mcp.MethodAcknowledged, params)
	sub.s.subscriptions.mu.Lock()
	early := sub.early
	sub.told, sub.early = told, nil
	sub.c.acked.Store(true)
	sub.s.subscriptions.mu.Unlock()
	for _, m := range early {
		sub.passTold(m)
	}
}

// honoured returns the filter to acknowledge, and its base text. Of resources and tasks it has
// those that upstreams have accepted so far; later ones are not notified. Changes of lists are as
// the client asked, because the session reports those of upstreams that come and go. But a single
// upstream's acknowledgment is forwarded verbatim.
func (sub *subscription) honoured() (f mcp.Filter, base json.RawMessage) {
	set := sub.upstreams
	sub.s.subscriptions.mu.Lock()
	defer sub.s.subscriptions.mu.Unlock()
	uris, tasks := make(map[string]bool), make(map[string]bool)
	f.Lists = sub.want.Lists
	for u, part := range sub.parts {
		for _, uri := range part.honoured.URIs {
			uris[uri] = true
		}
		for _, id := range part.honoured.Tasks {
			tasks[id], tasks[u.taskName(id)] = true, true
		}
		if set.only() == u && part.honoured.As != nil {
			base = part.honoured.As
			for k, honoured := range part.honoured.Lists {
				f.Lists[k] = f.Lists[k] && honoured
			}
		}
	}
	f.URIs, f.Tasks = among(sub.want.URIs, uris), among(sub.want.Tasks, tasks)
	return f, base
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

// changeLocked notes changes of lists, if the client wants them. The caller must poke run
// afterwards.
func (sub *subscription) changeLocked(lists [catalog.Kinds]bool) {
	for k, yes := range lists {
		sub.lists[k] = sub.lists[k] || yes && sub.want.Lists[k]
	}
}

func (sub *subscription) holdsChanges() bool {
	sub.s.subscriptions.mu.Lock()
	defer sub.s.subscriptions.mu.Unlock()
	return sub.lists != [catalog.Kinds]bool{} || sub.updated != nil
}

// hold returns a channel that receives when changes need no longer be held back, nil for now. The
// client's requests because of them must come after all returned upstreams were asked to listen, so
// that it misses nothing.
func (sub *subscription) hold() <-chan time.Time {
	sub.s.subscriptions.mu.Lock()
	defer sub.s.subscriptions.mu.Unlock()
	if wait := time.Until(sub.holdUntil); wait > 0 {
		return time.After(wait + debounce)
	}
	return nil
}

// sendChanges sends the changes that were held back.
func (sub *subscription) sendChanges() {
	sub.s.subscriptions.mu.Lock()
	lists, updated, told := sub.lists, sub.updated, sub.told
	sub.lists, sub.updated = [catalog.Kinds]bool{}, nil
	sub.s.subscriptions.mu.Unlock()
	for k, yes := range lists {
		if yes && told.Lists[k] {
			sub.send(catalog.Kind(k).Changed(), nil)
		}
	}
	for _, uri := range among(told.URIs, updated) {
		sub.send(mcp.MethodResourceUpdated, jsonrpc.Set(nil, jsonrpc.Value{Key: "uri", Text: jsonrpc.Quote(uri)}))
	}
}

// send sends a notification of the subscription.
func (sub *subscription) send(method string, params json.RawMessage) {
	sub.s.tell(sub.own(jsonrpc.NewNotification(method, params)))
}

// own returns a copy of a notification that belongs to this subscription.
func (sub *subscription) own(m *jsonrpc.Message) *jsonrpc.Message {
	out := *m
	out.Params = mcp.SetMeta(m.Params, sub.c.subscriptionMember())
	out.Related = sub.c.ID
	return &out
}

// pass forwards a notification of an upstream, if asked is true.
func (sub *subscription) pass(m *jsonrpc.Message, asked bool) {
	if !asked {
		sub.s.drop("not requested", m)
		return
	}
	m = sub.own(m)
	sub.s.subscriptions.mu.Lock()
	early := !sub.c.acked.Load()
	room := len(sub.early) < maxEarly && sub.bytes+m.Size() <= sub.s.router.queueBytes()
	if early && room {
		sub.early = append(sub.early, m)
		sub.bytes += m.Size()
	}
	sub.s.subscriptions.mu.Unlock()
	switch {
	case !early:
		sub.passTold(m)
	case !room:
		sub.s.drop("the subscription is not acknowledged", m)
	}
}

// passTold forwards a notification that the acknowledgment covers.
func (sub *subscription) passTold(m *jsonrpc.Message) {
	sub.s.subscriptions.mu.Lock()
	told := sub.told
	sub.s.subscriptions.mu.Unlock()
	if !told.Covers(m, &sub.want) {
		sub.s.drop("it was not acknowledged", m)
		return
	}
	sub.s.tell(m)
}
