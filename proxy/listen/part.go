package listen

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A part is the part of one upstream in a subscription: a subscriptions/listen of ours, repeated
// after it ends.
type part struct {
	// Static after construction.
	sub  *Subscription
	at   Upstream
	want mcp.Filter
	stop context.CancelFunc
	wake chan time.Duration // ends the pause of its goroutine after that time; never closed

	// Guarded by Subscriptions.mu.
	answered bool       // the upstream has acknowledged or refused it
	honoured mcp.Filter // the filter that it acknowledged last
	missed   bool       // notifications may have been lost, and the client was not notified
	rested   bool       // the upstream was not asked since it has no server; see rest
	failed   bool       // its first listen has ended: nobody waits for its acknowledgment
	dozing   bool       // it is not to listen, so that the upstream can rest

	stopListening context.CancelFunc // ends the current listen; nil while there is none
}

// A part that ended is repeated after about repeatFirst, then after twice that, up to repeatMost.
// The delay grows, because to listen starts an upstream, which may crash on it.
const (
	repeatFirst = time.Second
	repeatMost  = time.Minute
)

// run keeps the upstream listening until ctx ends. An upstream that refuses is asked again when it
// may have changed.
func (part *part) run(ctx context.Context) {
	delay := backoff.ExponentialBackOff{
		InitialInterval: repeatFirst, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: repeatMost,
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
		answer, err := part.at.Listen(listening, params, part.receive)
		stop()
		dozes := part.listens(nil)
		if dozes && ctx.Err() == nil { // also if the upstream has ended it at that moment: Verify finds what was missed
			continue
		}
		if err != nil {
			return
		}
		refused := part.ended(answer)
		if time.Since(began) >= repeatMost {
			delay.Reset()
		}
		if !part.pause(ctx, delay.NextBackOff(), refused) {
			return
		}
	}
}

// listens notes the function that ends the current listen, nil if there is none any more, and reports
// whether the part dozes. At the end of a listen it discards what came meanwhile: what comes later ends the pause.
func (part *part) listens(stop context.CancelFunc) (dozes bool) {
	mu := &part.sub.subs.mu
	mu.Lock()
	defer mu.Unlock()
	part.stopListening = stop
	if stop == nil && !part.dozing {
		part.discardWake()
	}
	return part.dozing
}

// rest waits while the upstream has no server, or is to have none, and the part is only for changes
// of its lists. It returns false if the part ends.
func (part *part) rest(ctx context.Context) bool {
	for part.want.OnlyLists() && part.rests() {
		select {
		case <-part.wake: // it has a stream now
			part.awake()
		case <-ctx.Done():
			return false
		case <-part.at.Done():
			return false
		}
	}
	return true
}

// rests reports whether the part rests, which counts as an answer.
func (part *part) rests() bool {
	idle := part.at.IsIdle()
	mu := &part.sub.subs.mu
	mu.Lock()
	defer mu.Unlock()
	if !idle && !part.dozing {
		return false
	}
	part.answered, part.rested = true, true
	part.sub.poke()
	return true
}

func (part *part) awake() {
	part.sub.subs.mu.Lock()
	defer part.sub.subs.mu.Unlock()
	part.dozing = false
}

// dozeLocked ends a listen that is only for changes of lists, and reports whether there is one.
func (part *part) dozeLocked() bool {
	if !part.want.OnlyLists() || part.stopListening == nil || part.dozing {
		return false
	}
	part.discardWake()
	part.dozing = true
	part.stopListening()
	return true
}

// discardWake discards what came while the part listened.
func (part *part) discardWake() {
	select {
	case <-part.wake:
	default:
	}
}

// ended notes that the upstream ended the subscription, and reports whether it refused the request
// itself.
func (part *part) ended(answer *jsonrpc.Message) (refused bool) {
	raw, _ := jsonrpc.Member(answer.Error, "code")
	switch code, _ := strconv.Atoi(string(raw)); code {
	case jsonrpc.CodeMethodNotFound, jsonrpc.CodeInvalidParams, mcp.CodeMissingCapability, mcp.CodeUnsupportedVersion:
		refused = true
	}
	part.at.Log().Debug("upstream ended the subscription", "refused", refused)
	mu := &part.sub.subs.mu
	mu.Lock()
	defer mu.Unlock()
	if refused {
		part.answeredLocked(mcp.Filter{})
	}
	part.missed, part.failed = true, true
	part.sub.poke()
	return refused
}

// pause waits until it is time to listen again, and returns false if that never comes. resume may
// end it earlier.
func (part *part) pause(ctx context.Context, delay time.Duration, refused bool) bool {
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
		case <-part.at.Done():
			return false
		}
	}
}

// resume ends a pause after a time. It does not wait.
func (part *part) resume(after time.Duration) {
	select {
	case part.wake <- after:
	default:
	}
}

// answeredLocked notes the filter that the upstream has acknowledged. If anything was missed
// before, the client is notified.
func (part *part) answeredLocked(honoured mcp.Filter) {
	part.answered, part.honoured = true, honoured
	part.tellMissedLocked()
}

// tellMissedLocked notifies the client of everything if anything was missed.
func (part *part) tellMissedLocked() {
	if part.missed {
		part.missed = false
		part.sub.missedLocked(part.want.Lists, part.honoured.URIs)
	}
	part.sub.poke()
}

// receive handles a notification of the upstream. It drops those that were not asked for.
func (part *part) receive(m *jsonrpc.Message) {
	allowed := part.sub.client.Note(part.at, m)
	if k, ok := catalog.ChangedKind(m.Method); ok {
		part.listChanged(k)
		return
	}
	switch m.Method {
	case mcp.MethodAcknowledged:
		part.acknowledged(m)
	case mcp.MethodResourceUpdated:
		part.sub.pass(m, part.want.URIs != nil && allowed)
	case mcp.MethodTask:
		out := *m
		out.Params = jsonrpc.Replace(m.Params, catalog.Renaming(mcp.Read(m), mcp.Key, part.taskName)...)
		part.sub.pass(&out, part.want.Tasks != nil && allowed)
	default:
		part.sub.pass(m, part.want.As != nil && allowed) // of an extension
	}
}

// taskName returns the name of a task of the upstream in this subscription.
func (part *part) taskName(id string) string {
	if slices.Contains(part.sub.want.Tasks, id) {
		return id
	}
	return part.sub.client.TaskName(part.at, id)
}

func (part *part) acknowledged(m *jsonrpc.Message) {
	honoured, err := mcp.ReadFilter(mcp.Read(m))
	if err != nil {
		part.at.Log().Debug("unusable acknowledgment from upstream", "err", err)
	}
	mu := &part.sub.subs.mu
	mu.Lock()
	part.answeredLocked(honoured)
	rested := part.rested
	part.rested = false
	mu.Unlock()
	if rested {
		part.sub.client.Verify(part.at, part.want.Lists)
	}
}

// listChanged notifies the client of a change of a list, if it wants that and may see any of it.
func (part *part) listChanged(k catalog.Kind) {
	if part.want.Lists[min(k, catalog.Resources)] && part.sub.client.Sees(part.at, k) {
		var lists [catalog.Kinds]bool
		lists[k] = true
		part.sub.change(lists)
	}
}
