package session

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A share is the part of a listen that one upstream has: a listen of our own, made
// again after it ended.
type share struct {
	// Static after construction.
	ln   *listen
	leg  *leg
	want filter
	stop context.CancelFunc
	wake chan time.Duration // to its goroutine while it pauses: go on after that time; never closed

	// Guarded by session.mu.
	answered bool   // the upstream has acknowledged it, or has refused
	honoured filter // what it acknowledged last
	missed   bool   // what it would have heard was lost, and the client was not told
}

// A share that ended is made again after about relistenFirst, then after twice
// that, up to relistenMost: to listen starts an upstream, which may die of it.
const (
	relistenFirst = time.Second
	relistenMost  = time.Minute
)

// run keeps the upstream listening until ctx ends. One that refuses is asked again
// when it may have become another one.
func (sh *share) run(ctx context.Context) {
	delay := relistenFirst
	for {
		began := time.Now()
		params := listenParams(sh.ln.meta, sh.want.text())
		answer, err := sh.leg.askFor(ctx, sh, methodListen, params)
		if err != nil {
			return
		}
		refused := sh.ended(answer)
		if time.Since(began) >= relistenMost {
			delay = relistenFirst
		}
		if !sh.pause(ctx, delay, refused) {
			return
		}
		delay = min(2*delay, relistenMost)
	}
}

// listenParams are those of a subscriptions/listen.
func listenParams(meta, notifications json.RawMessage) json.RawMessage {
	return jsonrpc.Set(nil, jsonrpc.Value{Key: "_meta", Text: meta}, jsonrpc.Value{Key: "notifications", Text: notifications})
}

// ended notes that the upstream listens no more and reports whether it refused to:
// for what is wrong with the request, not with the upstream.
func (sh *share) ended(answer *jsonrpc.Message) (refused bool) {
	switch code, _ := jsonrpc.Member(answer.Error, "code"); string(code) {
	case noMethod, "-32602", "-32021", "-32022":
		refused = true
	}
	s := sh.ln.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if refused {
		sh.answeredLocked(filter{})
	}
	sh.missed = true
	sh.leg.log.Debug("upstream listens no more", "refused", refused)
	return refused
}

// pause waits until it is time to listen again, and reports false if it never is.
// It may be woken before.
func (sh *share) pause(ctx context.Context, delay time.Duration, refused bool) bool {
	select {
	case <-sh.wake: // it came while the upstream listened
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
		case d := <-sh.wake:
			timer = time.After(d)
		case <-ctx.Done():
			return false
		case <-sh.leg.ctx.Done():
			return false
		}
	}
}

// wakeSharesLocked ends the pauses of all shares of an upstream after a time: it is
// back.
func (l *leg) wakeSharesLocked(after time.Duration) {
	for ln := range l.s.listens {
		sh := ln.shares[l]
		if sh == nil {
			continue
		}
		select {
		case sh.wake <- after:
		default:
		}
	}
}

// answeredLocked notes what the upstream honours. If anything was missed before,
// the client is told to look for itself.
func (sh *share) answeredLocked(honoured filter) {
	sh.answered, sh.honoured = true, honoured
	sh.tellMissedLocked()
}

// tellMissedLocked makes the client look for itself if anything was missed.
func (sh *share) tellMissedLocked() {
	if sh.missed {
		sh.missed = false
		sh.ln.changeLocked(sh.want.lists)
		for _, uri := range sh.honoured.uris {
			sh.ln.missedLocked(uri)
		}
	}
	sh.ln.poke()
}

// tellMissedLocked tells the listens of the client what they missed of an upstream
// that is back, after a time.
func (l *leg) tellMissedLocked(after time.Duration) {
	for ln := range l.s.listens {
		if sh := ln.shares[l]; sh != nil && sh.missed {
			ln.holdUntil = time.Now().Add(after)
			sh.tellMissedLocked()
		}
	}
}

// shareOf returns the share that a notification of an upstream belongs to.
func (l *leg) shareOf(m *jsonrpc.Message) *share {
	id := m.Related
	if id.IsZero() {
		id = subscriptionOf(m.Params)
	}
	n, ok := id.Int()
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if r := l.pending[n]; ok && r != nil {
		return r.share
	}
	return nil
}

// subscriptionOf returns the id of the listen that a notification says it belongs
// to.
func subscriptionOf(params json.RawMessage) jsonrpc.ID {
	var at [2]jsonrpc.Span
	err := jsonrpc.Find(params, jsonrpc.Span{}, at[:1], "_meta")
	if err == nil && !at[0].IsZero() {
		err = jsonrpc.Find(params, at[0], at[1:], mcp.KeySubscription)
	}
	if err != nil {
		return jsonrpc.ID{}
	}
	id, _ := jsonrpc.ParseID(at[1].Of(params))
	return id
}

// receive handles what the upstream has to tell. Nothing that was not asked for
// passes.
func (sh *share) receive(m *jsonrpc.Message) {
	ln := sh.ln
	switch m.Method {
	case "notifications/subscriptions/acknowledged":
		sh.acknowledged(m)
	case kindInfo[tools].changed:
		sh.changed(tools)
	case kindInfo[prompts].changed:
		sh.changed(prompts)
	case kindInfo[resources].changed:
		sh.changed(resources)
	case "notifications/resources/updated":
		ln.pass(m, sh.want.uris != nil)
	case "notifications/tasks":
		out := *m
		out.Params = renamed(m.Params, whole(m.Params), sh.taskName)
		ln.pass(&out, sh.want.tasks != nil)
	default:
		ln.pass(m, sh.want.as != nil) // the only upstream
	}
}

// taskName returns what the listen calls a task of the upstream.
func (sh *share) taskName(id string) string {
	if name := sh.leg.taskName(id); !slices.Contains(sh.ln.want.tasks, id) {
		return name
	}
	return id
}

func (sh *share) acknowledged(m *jsonrpc.Message) {
	honoured, err := readFilter(m.Params)
	if err != nil {
		sh.leg.log.Debug("unusable acknowledgment from upstream", "err", err)
	}
	sh.ln.s.mu.Lock()
	defer sh.ln.s.mu.Unlock()
	if a := sh.leg.attempt; !a.ended {
		sh.leg.heardLocked(a)
	}
	sh.answeredLocked(honoured)
}

// changed notes that the upstream changed a list.
func (sh *share) changed(k kind) {
	s := sh.ln.s
	s.mu.Lock()
	defer s.mu.Unlock()
	sh.leg.changedLocked(k)
	sh.tellListLocked(k)
}

// tellListLocked tells the client that a list is not what it was, if it wants to hear.
func (sh *share) tellListLocked(k kind) {
	if sh.want.lists[k] {
		var lists [kinds]bool
		lists[k] = true
		sh.ln.changeLocked(lists)
		sh.ln.poke()
	}
}

// tellListensLocked tells all listens of the client that a list of the upstream is not
// what it was.
func (l *leg) tellListensLocked(k kind) {
	for ln := range l.s.listens {
		if sh := ln.shares[l]; sh != nil {
			sh.tellListLocked(k)
		}
	}
}

// listenCancelled handles an upstream's cancellation of a listen, which is how
// some end one.
func (l *leg) listenCancelled(m *jsonrpc.Message) {
	raw, err := jsonrpc.Member(m.Params, "requestId")
	id, _ := jsonrpc.ParseID(raw)
	n, ok := id.Int()
	l.s.mu.Lock()
	r := l.pending[n]
	known := err == nil && ok && r != nil && r.share != nil
	if known {
		r.removeLocked()
	}
	l.s.mu.Unlock()
	if !known {
		l.s.drop("cancellation of no listen", m)
		return
	}
	r.settle(jsonrpc.NewResult(r.id, json.RawMessage(`{}`)))
}
