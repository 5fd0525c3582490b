package session

import (
	"context"
	"errors"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Nobody waits twice: who was once not there in time holds up no later initialize or
// list that another upstream can answer, until it has answered. Clients hear of it by
// list_changed.

// A lateKey is what an upstream was late for: a method, among them starts. The
// upstream is "" for those that are not known yet.
type lateKey struct{ upstream, method string }

// starts stands for the start, in whatever era.
const starts = "initialize"

func (p *Router) wasLate(upstream, method string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.late[lateKey{upstream, method}]
}

func (p *Router) noteLate(upstream, method string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.late == nil {
		p.late = make(map[lateKey]bool)
	}
	p.late[lateKey{upstream, method}] = true
}

// noteInTime notes that an upstream has answered.
func (p *Router) noteInTime(upstream, method string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.late, lateKey{upstream, method})
}

// forgetLateLocked gives upstreams another chance: they may be something else now.
func (p *Router) forgetLateLocked(of func(upstream string) bool) {
	for key := range p.late {
		if of(key.upstream) {
			delete(p.late, key)
		}
	}
}

// late reports whether nobody is to wait for the upstream's answer to a method that
// another one can answer. What others had to wait for is no reason where it has started.
func (l *leg) late(method string) bool {
	return method != starts && l.s.p.wasLate(l.up.Name, method) || !l.started() && l.s.p.wasLate(l.up.Name, starts)
}

// noteLate notes that the upstream did not answer in time.
func (l *leg) noteLate(method string) {
	l.s.p.noteLate(l.up.Name, method)
	if !l.started() {
		l.s.p.noteLate(l.up.Name, starts)
	}
}

// alive reports whether the upstream has answered initialize on an open stream.
func (l *leg) alive() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.attempt != nil && l.attempt.ready && !l.attempt.ended
}

// started reports whether the upstream has answered anything on an open stream.
func (l *leg) started() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.attempt != nil && l.attempt.heard && !l.attempt.ended
}

// starting reports whether there is an open stream on which nothing was answered yet.
func (l *leg) starting() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.attempt != nil && !l.attempt.heard && !l.attempt.ended
}

// heardLocked notes that the upstream has answered something. What it was too late
// for before it may answer now.
func (l *leg) heardLocked(a *attempt) {
	if !a.heard {
		a.heard = true
		l.s.p.noteInTime(l.up.Name, starts)
		l.s.p.noteInTime(l.up.Name, mcp.DiscoverMethod) // which is how the modern era asks for it
	}
	for k, who := range l.behind {
		delete(l.behind, k)
		l.asideLocked(kindInfo[k].method, func(ctx context.Context) { l.catchUp(ctx, k, who) })
	}
}

// behindLocked notes that a client has seen a list of a kind without the upstream.
func (l *leg) behindLocked(k kind, who asker) {
	if l.behind == nil {
		l.behind = make(map[kind]asker)
	}
	l.behind[k] = who
}

// asideLocked runs fn, which asks the upstream for something that nobody waits for, unless
// that is being done already.
func (l *leg) asideLocked(method string, fn func(ctx context.Context)) {
	if l.closed || l.aside[method] {
		return
	}
	if l.aside == nil {
		l.aside = make(map[string]bool)
	}
	l.aside[method] = true
	l.s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(l.s.ctx, l.s.p.listTimeout())
		defer cancel()
		fn(ctx)
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		delete(l.aside, method)
	})
}

// catchUp lists a kind for a client that has seen a list without the upstream, and
// tells it if there is anything to see.
func (l *leg) catchUp(ctx context.Context, k kind, who asker) {
	li, _ := l.list(ctx, k, who)
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	switch {
	case li == nil && late(ctx):
		l.behindLocked(k, who)
	case li == nil:
	case l.era == mcp.Modern:
		l.tellListensLocked(min(k, resources)) // there is one notification for both
	case l.s.shown[k] && l.s.hello.listChanged[k] && l.announced[k] == 0 && li.digest != l.shown[k]:
		l.s.tellChangedLocked(min(k, resources))
	}
}

// missed sees to it that the client hears of an upstream that is missing in a list
// of a kind since it was late. That it starts is told when it has.
func (l *leg) missedList(k kind, who asker, f *failure) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	a := l.openLocked()
	switch {
	case l.era == mcp.Legacy && !a.ready:
	case f.skipped:
		l.asideLocked(kindInfo[k].method, func(ctx context.Context) { l.catchUp(ctx, k, who) })
	default:
		l.behindLocked(k, who)
	}
}

// late reports whether what ctx bounds took too long; it may have been called off.
func late(ctx context.Context) bool { return errors.Is(ctx.Err(), context.DeadlineExceeded) }

// lateFailure is why an upstream has no part in an answer that did not wait for it any
// longer.
func (l *leg) lateFailure() *failure {
	f := ownFailure(jsonrpc.TimedOut(l.up.Name))
	if l.starting() {
		if l.era == mcp.Legacy {
			f = ownFailure(l.slow())
		}
		f.cause = "still starting"
	}
	f.late = true
	return f
}

// lastTable returns what any client saw last of a list of the upstream, while it
// starts; nil if nobody has seen any.
func (l *leg) lastTable(w *view, k kind) *table {
	if !l.starting() {
		return nil
	}
	t := l.s.p.lastTable(l.tableKey(w.caps, k))
	if t != nil {
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		l.catalogLocked(w).tables[k] = t // what is listed can be called
	}
	return t
}
