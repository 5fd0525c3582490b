package session

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A subscriptionPart is what one upstream has of a subscription: a subscriptions/listen
// of our own, made again after it ended.
type subscriptionPart struct {
	// Static after construction.
	sub  *subscription
	conn *upstreamConn
	want catalog.Filter
	stop context.CancelFunc
	wake chan time.Duration // to its goroutine while it pauses: go on after that time; never closed

	// Guarded by subscriptions.mu.
	answered bool           // the upstream has acknowledged it, or has refused
	honoured catalog.Filter // what it acknowledged last
	missed   bool           // what it would have heard was lost, and the client was not told
}

// A part that ended is made again after about resubscribeFirst, then after twice
// that, up to resubscribeMost: to listen starts an upstream, which may die of it.
const (
	resubscribeFirst = time.Second
	resubscribeMost  = time.Minute
)

// run keeps the upstream listening until ctx ends. One that refuses is asked again
// when it may have become another one.
func (part *subscriptionPart) run(ctx context.Context) {
	delay := resubscribeFirst
	for {
		began := time.Now()
		params := listenParams(part.sub.meta, part.want.Text())
		answer, err := part.conn.askFor(ctx, part, mcp.MethodListen, params)
		if err != nil {
			return
		}
		refused := part.ended(answer)
		if time.Since(began) >= resubscribeMost {
			delay = resubscribeFirst
		}
		if !part.pause(ctx, delay, refused) {
			return
		}
		delay = min(2*delay, resubscribeMost)
	}
}

// listenParams are those of a subscriptions/listen.
func listenParams(meta, notifications json.RawMessage) json.RawMessage {
	return jsonrpc.Set(nil, jsonrpc.Value{Key: "_meta", Text: meta}, jsonrpc.Value{Key: "notifications", Text: notifications})
}

// ended notes that the upstream listens no more and reports whether it refused to:
// for what is wrong with the request, not with the upstream.
func (part *subscriptionPart) ended(answer *jsonrpc.Message) (refused bool) {
	switch code, _ := jsonrpc.Member(answer.Error, "code"); string(code) {
	case noMethod, "-32602", "-32021", "-32022":
		refused = true
	}
	mu := &part.sub.s.subscriptions.mu
	mu.Lock()
	defer mu.Unlock()
	if refused {
		part.answeredLocked(catalog.Filter{})
	}
	part.missed = true
	part.conn.log.Debug("upstream listens no more", "refused", refused)
	return refused
}

// pause waits until it is time to listen again, and reports false if it never is.
// It may be woken before.
func (part *subscriptionPart) pause(ctx context.Context, delay time.Duration, refused bool) bool {
	select {
	case <-part.wake: // it came while the upstream listened
	default:
	}
	var timer <-chan time.Time // nil: a refusal stands until the upstream changes
	if !refused {
		timer = time.After(delay/2 + rand.N(delay))
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

// answeredLocked notes what the upstream honours. If anything was missed before,
// the client is told to look for itself.
func (part *subscriptionPart) answeredLocked(honoured catalog.Filter) {
	part.answered, part.honoured = true, honoured
	part.tellMissedLocked()
}

// tellMissedLocked makes the client look for itself if anything was missed.
func (part *subscriptionPart) tellMissedLocked() {
	if part.missed {
		part.missed = false
		part.sub.changeLocked(part.want.Lists)
		for _, uri := range part.honoured.URIs {
			part.sub.missedLocked(uri)
		}
	}
	part.sub.poke()
}

// partOf returns the part that a notification of an upstream belongs to.
func (u *upstreamConn) partOf(m *jsonrpc.Message) *subscriptionPart {
	id := m.Related
	if id.IsZero() {
		id = subscriptionID(mcp.Read(m))
	}
	n, ok := id.Int()
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if r := u.pending[n]; ok && r != nil {
		return r.part
	}
	return nil
}

// subscriptionID returns the id of the subscription that a notification says it belongs
// to.
func subscriptionID(n *mcp.Notes) jsonrpc.ID {
	if n.Err(mcp.InMeta, mcp.Subscription) != nil {
		return jsonrpc.ID{}
	}
	id, _ := jsonrpc.ParseID(n.Raw(mcp.Subscription))
	return id
}

// receive handles what the upstream has to tell. Nothing that was not asked for
// passes.
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
		sub.pass(m, part.want.URIs != nil)
	case mcp.MethodTask:
		out := *m
		out.Params = jsonrpc.Replace(m.Params, catalog.Renaming(mcp.Read(m), mcp.Key, part.taskName)...)
		sub.pass(&out, part.want.Tasks != nil)
	default:
		sub.pass(m, part.want.As != nil) // the only upstream
	}
}

// taskName returns what the subscription calls a task of the upstream.
func (part *subscriptionPart) taskName(id string) string {
	if name := part.conn.taskName(id); !slices.Contains(part.sub.want.Tasks, id) {
		return name
	}
	return id
}

func (part *subscriptionPart) acknowledged(m *jsonrpc.Message) {
	honoured, err := catalog.ReadFilter(mcp.Read(m))
	if err != nil {
		part.conn.log.Debug("unusable acknowledgment from upstream", "err", err)
	}
	part.conn.heard()
	mu := &part.sub.s.subscriptions.mu
	mu.Lock()
	defer mu.Unlock()
	part.answeredLocked(honoured)
}

// changed notes that the upstream changed a list.
func (part *subscriptionPart) changed(k catalog.Kind) {
	part.conn.lists.changed(k)
	mu := &part.sub.s.subscriptions.mu
	mu.Lock()
	defer mu.Unlock()
	part.tellListLocked(k)
}

// tellListLocked tells the client that a list is not what it was, if it wants to hear.
func (part *subscriptionPart) tellListLocked(k catalog.Kind) {
	if part.want.Lists[k] {
		var lists [catalog.Kinds]bool
		lists[k] = true
		part.sub.changeLocked(lists)
		part.sub.poke()
	}
}

// subscriptionCancelled handles an upstream's cancellation of a subscription, which is how
// some end one.
func (u *upstreamConn) subscriptionCancelled(m *jsonrpc.Message) {
	notes := mcp.Read(m)
	id, _ := jsonrpc.ParseID(notes.Raw(mcp.Key))
	n, ok := id.Int()
	u.s.mu.Lock()
	r := u.pending[n]
	known := notes.Err(mcp.Key) == nil && ok && r != nil && r.part != nil
	if known {
		r.removeLocked()
	}
	u.s.mu.Unlock()
	if !known {
		u.s.drop("cancellation of no subscription", m)
		return
	}
	r.settle(jsonrpc.NewResult(r.id, json.RawMessage(`{}`)))
}
