package session

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/owners"
)

// A subscriptionPart is the part of one upstream in a subscription: a subscriptions/listen of the
// session, repeated after it ends.
type subscriptionPart struct {
	// Static after construction.
	sub  *subscription
	conn *upstreamConn
	want mcp.Filter
	stop context.CancelFunc
	wake chan time.Duration // ends the pause of its goroutine after that time; never closed

	// Guarded by subscriptions.mu.
	answered bool       // the upstream has acknowledged or refused it
	honoured mcp.Filter // the filter that it acknowledged last
	missed   bool       // notifications may have been lost, and the client was not notified
	rested   bool       // the upstream was not asked since it has no server; see rest
	dozing   bool       // it is not to listen, so that the upstream can rest

	stopListening context.CancelFunc // ends the current listen; nil while there is none
}

// A part that ended is repeated after about resubscribeFirst, then after twice that, up to
// resubscribeMost. The delay grows, because to listen starts an upstream, which may crash on it.
const (
	resubscribeFirst = time.Second
	resubscribeMost  = time.Minute
)

// run keeps the upstream listening until ctx ends. An upstream that refuses is asked again when it
// may have changed.
func (part *subscriptionPart) run(ctx context.Context) {
	delay := backoff.ExponentialBackOff{
		InitialInterval: resubscribeFirst, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: resubscribeMost,
	}
	for {
		if !part.rest(ctx) {
			return
		}
		began := time.Now()
		params := jsonrpc.Set(nil,
			jsonrpc.Value{Key: "_meta", Text: part.sub.meta},
			jsonrpc.Value{Key: "notifications", Text: part.want.Text()})
		listening, stop := context.WithCancel(ctx)
		part.listens(stop)
		answer, err := part.conn.askFor(listening, part.receive, mcp.MethodListen, params)
		stop()
		dozes := part.listens(nil)
		if err != nil && dozes && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return
		}
		refused := part.ended(answer)
		if time.Since(began) >= resubscribeMost {
			delay.Reset()
		}
		if !part.pause(ctx, delay.NextBackOff(), refused) {
			return
		}
	}
}

// listens notes the function that ends the current listen, nil if there is none, and reports
// whether the part dozes.
func (part *subscriptionPart) listens(stop context.CancelFunc) (dozes bool) {
	mu := &part.sub.s.subscriptions.mu
	mu.Lock()
	defer mu.Unlock()
	part.stopListening = stop
	return part.dozing
}

// rest waits while the upstream has no server, or is to have none, and the part is only for changes
// of its lists, which the catalog answers. It returns false if ctx ends.
func (part *subscriptionPart) rest(ctx context.Context) bool {
	mu := &part.sub.s.subscriptions.mu
	for part.want.OnlyLists() {
		idle := part.conn.lists.IsIdle()
		mu.Lock()
		if !idle && !part.dozing {
			mu.Unlock()
			return true
		}
		part.answered, part.honoured, part.rested = true, part.want, true
		part.sub.poke()
		mu.Unlock()
		select {
		case <-part.wake: // it has a stream now
			mu.Lock()
			part.dozing = false
			mu.Unlock()
		case <-ctx.Done():
			return false
		case <-part.conn.ctx.Done():
			return false
		}
	}
	return true
}

// client returns the client of the subscription.
func (part *subscriptionPart) client() lists.Client {
	return lists.Client{Caps: part.sub.c.caps, Grant: part.sub.grant(), Meta: part.sub.identity}
}

// verify notifies the client if a server that has started lists something else than the catalog.
func (part *subscriptionPart) verify() {
	for k := range catalog.Kinds {
		if part.want.Lists[min(k, catalog.Resources)] {
			part.conn.lists.Verify(k, part.client())
		}
	}
}

// ended notes that the upstream ended the subscription, and reports whether it refused the request
// itself.
func (part *subscriptionPart) ended(answer *jsonrpc.Message) (refused bool) {
	switch code, _ := jsonrpc.Member(answer.Error, "code"); string(code) {
	case "-32601", "-32602", "-32021", "-32022":
		refused = true
	}
	mu := &part.sub.s.subscriptions.mu
	mu.Lock()
	defer mu.Unlock()
	if refused {
		part.answeredLocked(mcp.Filter{})
	}
	part.missed = true
	part.conn.log.Debug("upstream ended the subscription", "refused", refused)
	return refused
}

// pause waits until it is time to listen again, and returns false if that never comes. resume may
// end it earlier.
func (part *subscriptionPart) pause(ctx context.Context, delay time.Duration, refused bool) bool {
	select {
	case <-part.wake: // it came while the upstream listened
	default:
	}
	var timer <-chan time.Time // nil: a refusal lasts until the upstream changes
	if !refused {
		timer = time.After(delay)
	}
	for {
		select {
		case <-timer:
			return true
		case d := <-part.wake:
			timer = time.After(d)
		case <-ctx.Done():
			return false
		case <-part.conn.ctx.Done():
			return false
		}
	}
}

// resume ends a pause after a time. It does not wait.
func (part *subscriptionPart) resume(after time.Duration) {
	select {
	case part.wake <- after:
	default:
	}
}

// answeredLocked notes the filter that the upstream has acknowledged. If anything was missed
// before, the client is notified.
func (part *subscriptionPart) answeredLocked(honoured mcp.Filter) {
	part.answered, part.honoured = true, honoured
	part.tellMissedLocked()
}

// tellMissedLocked notifies the client of everything if anything was missed.
func (part *subscriptionPart) tellMissedLocked() {
	if part.missed {
		part.missed = false
		part.sub.changeLocked(part.want.Lists)
		for _, uri := range part.honoured.URIs {
			put(&part.sub.updated, uri, true)
		}
	}
	part.sub.poke()
}

// receive handles a notification of the upstream. It drops those that were not asked for.
func (part *subscriptionPart) receive(m *jsonrpc.Message) {
	sub := part.sub
	switch m.Method {
	case mcp.MethodAcknowledged:
		part.acknowledged(m)
	case catalog.Tools.Changed():
		part.changed(catalog.Tools)
	case catalog.Prompts.Changed():
		part.changed(catalog.Prompts)
	case catalog.Resources.Changed():
		part.changed(catalog.Resources)
	case mcp.MethodResourceUpdated:
		sub.pass(m, part.want.URIs != nil && mayNotify(sub.grant(), m))
	case mcp.MethodTask:
		if id, ended := catalog.NotedTask(mcp.Read(m)); ended {
			sub.s.tasks.End(part.conn, part.conn.taskName(id))
		}
		out := *m
		out.Params = jsonrpc.Replace(m.Params, catalog.Renaming(mcp.Read(m), mcp.Key, part.taskName)...)
		sub.pass(&out, part.want.Tasks != nil)
	default:
		sub.pass(m, part.want.As != nil) // of a sole upstream
	}
}

// taskName returns the name of a task of the upstream in this subscription.
func (part *subscriptionPart) taskName(id string) string {
	if name := part.conn.taskName(id); !slices.Contains(part.sub.want.Tasks, id) {
		return name
	}
	return id
}

func (part *subscriptionPart) acknowledged(m *jsonrpc.Message) {
	honoured, err := mcp.ReadFilter(mcp.Read(m))
	if err != nil {
		part.conn.log.Debug("unusable acknowledgment from upstream", "err", err)
	}
	part.conn.noteAlive()
	mu := &part.sub.s.subscriptions.mu
	mu.Lock()
	part.answeredLocked(honoured)
	rested := part.rested
	part.rested = false
	mu.Unlock()
	if rested {
		part.verify()
	}
}

// changed notes that the upstream changed a list.
func (part *subscriptionPart) changed(k catalog.Kind) {
	part.conn.lists.Changed(k, part.client())
	mu := &part.sub.s.subscriptions.mu
	mu.Lock()
	defer mu.Unlock()
	part.tellListLocked(k)
}

// tellListLocked notifies the client of a change of a list, if it wants that.
func (part *subscriptionPart) tellListLocked(k catalog.Kind) {
	if part.want.Lists[k] && part.sub.grant().SeesAny(lists.KindOf(k), part.conn.up.Name) {
		var lists [catalog.Kinds]bool
		lists[k] = true
		part.sub.changeLocked(lists)
		part.sub.poke()
	}
}

// split returns the filter of each upstream. All that may have a list listen for its changes. The
// owner of a resource or a task listens for that, or if it is unknown, all that may have it. A sole
// upstream gets the client's own filter.
func (sub *subscription) split(ctx context.Context, set *upstreamSet) map[*upstreamConn]mcp.Filter {
	if u := set.only(); u != nil {
		return map[*upstreamConn]mcp.Filter{u: forOnly(sub.want, set)}
	}
	wants := make(map[*upstreamConn]mcp.Filter, len(set.conns))
	for _, u := range set.conns {
		var f mcp.Filter
		for k, wanted := range sub.want.Lists {
			f.Lists[k] = wanted && u.lists.Says().Offers(catalog.Kind(k).Capability())
		}
		wants[u] = f
	}
	who := lists.Client{Caps: sub.c.caps, Grant: sub.grant(), Meta: sub.identity}
	set.findOwners(ctx, who, sub.want.URIs)
	for _, uri := range sub.want.URIs {
		for _, u := range set.watchersOf(who.Caps, uri) {
			f := wants[u]
			f.URIs = append(f.URIs, uri)
			wants[u] = f
		}
	}
	for _, name := range sub.want.Tasks {
		for u, id := range set.runnersOf(name) {
			f := wants[u]
			f.Tasks = append(f.Tasks, id)
			wants[u] = f
		}
	}
	maps.DeleteFunc(wants, func(_ *upstreamConn, f mcp.Filter) bool { return f.IsEmpty() })
	return wants
}

// findOwners lists the resources of the upstreams if the owner of one is unknown.
func (set *upstreamSet) findOwners(ctx context.Context, who lists.Client, uris []string) {
	if slices.ContainsFunc(uris, func(uri string) bool { return set.ownerOf(who.Caps, uri) == nil }) {
		ctx, cancel := context.WithTimeout(ctx, ownersWithin)
		defer cancel()
		lists.Refresh(ctx, listsOf(set.conns), who, catalog.Resources, catalog.Templates)
	}
}

// watchersOf returns the upstreams that may send updates of a resource.
func (set *upstreamSet) watchersOf(caps catalog.Digest, uri string) []*upstreamConn {
	if u := set.ownerOf(caps, uri); u != nil {
		return []*upstreamConn{u}
	}
	return set.withResources()
}

// runnersOf returns the upstreams that may run a task, with their own ids of it.
func (set *upstreamSet) runnersOf(name string) map[*upstreamConn]string {
	if u, own := set.runner(name); u != nil {
		if !u.mayUse(owners.OfTask, own) {
			return nil
		}
		return map[*upstreamConn]string{u: own}
	}
	found := make(map[*upstreamConn]string)
	for _, u := range set.conns {
		if (u.lists.Says().Result == nil || u.lists.Says().DeclaresTasks()) && u.mayUse(owners.OfTask, name) {
			found[u] = name
		}
	}
	return found
}

// forOnly returns the client's filter with a sole upstream's own ids of its tasks. The client may
// have other ids, from when there were several upstreams.
func forOnly(f mcp.Filter, set *upstreamSet) mcp.Filter {
	own := make([]string, 0, len(f.Tasks))
	for _, name := range f.Tasks {
		if u, id := set.runner(name); u.mayUse(owners.OfTask, id) {
			own = append(own, id)
		}
	}
	if !slices.Equal(own, f.Tasks) {
		f.Tasks = own
		f.As = f.On(f.As)
	}
	return f
}
