package session

import (
	"context"
	"errors"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// Nobody waits twice: who was once not there in time holds up no later initialize or
// list that another upstream can answer, until it has answered. Clients hear of it by
// list_changed.

// A lateKey is what an upstream was late for: a method, among them starts. The
// upstream is "" for those that are not known yet.
type lateKey struct{ upstream, method string }

// starts stands for the start, in whatever era.
const starts = mcp.MethodInitialize

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
func (u *upstreamConn) late(method string) bool {
	return method != starts && u.s.p.wasLate(u.up.Name, method) || !u.started() && u.s.p.wasLate(u.up.Name, starts)
}

// noteLate notes that the upstream did not answer in time.
func (u *upstreamConn) noteLate(method string) {
	u.s.p.noteLate(u.up.Name, method)
	if !u.started() {
		u.s.p.noteLate(u.up.Name, starts)
	}
}

// alive reports whether the upstream has answered initialize on an open stream.
func (u *upstreamConn) alive() bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.attempt != nil && u.attempt.ready && !u.attempt.ended
}

// started reports whether the upstream has answered anything on an open stream.
func (u *upstreamConn) started() bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.attempt != nil && u.attempt.heard && !u.attempt.ended
}

// starting reports whether there is an open stream on which nothing was answered yet.
func (u *upstreamConn) starting() bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.attempt != nil && !u.attempt.heard && !u.attempt.ended
}

// heardLocked notes that the upstream has answered something. What it was too late
// for before it may answer now.
func (u *upstreamConn) heardLocked(a *attempt) {
	if !a.heard {
		a.heard = true
		u.s.p.noteInTime(u.up.Name, starts)
		u.s.p.noteInTime(u.up.Name, mcp.MethodDiscover) // which is how the modern era asks for it
	}
	for k, who := range u.behind {
		delete(u.behind, k)
		u.asideLocked(k.Method(), func(ctx context.Context) { u.catchUp(ctx, k, who) })
	}
}

// behindLocked notes that a client has seen a list of a kind without the upstream.
func (u *upstreamConn) behindLocked(k catalog.Kind, who asker) {
	if u.behind == nil {
		u.behind = make(map[catalog.Kind]asker)
	}
	u.behind[k] = who
}

// asideLocked runs fn, which asks the upstream for something that nobody waits for, unless
// that is being done already.
func (u *upstreamConn) asideLocked(method string, fn func(ctx context.Context)) {
	if u.closed || u.aside[method] {
		return
	}
	if u.aside == nil {
		u.aside = make(map[string]bool)
	}
	u.aside[method] = true
	u.s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(u.s.ctx, u.s.p.listTimeout())
		defer cancel()
		fn(ctx)
		u.s.mu.Lock()
		defer u.s.mu.Unlock()
		delete(u.aside, method)
	})
}

// catchUp lists a kind for a client that has seen a list without the upstream, and
// tells it if there is anything to see.
func (u *upstreamConn) catchUp(ctx context.Context, k catalog.Kind, who asker) {
	li, _ := u.list(ctx, k, who)
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	switch {
	case li == nil && late(ctx):
		u.behindLocked(k, who)
	case li == nil:
	case u.era == mcp.Modern:
		u.tellSubscriptionsLocked(min(k, catalog.Resources)) // there is one notification for both
	case u.s.shown[k] && u.s.hello.listChanged[k] && u.announced[k] == 0 && li.Digest != u.shown[k]:
		u.s.tellChangedLocked(min(k, catalog.Resources))
	}
}

// missed sees to it that the client hears of an upstream that is missing in a list
// of a kind since it was late. That it starts is told when it has.
func (u *upstreamConn) missedList(k catalog.Kind, who asker, f *failure) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	a := u.openLocked()
	switch {
	case u.era == mcp.Legacy && !a.ready:
	case f.skipped:
		u.asideLocked(k.Method(), func(ctx context.Context) { u.catchUp(ctx, k, who) })
	default:
		u.behindLocked(k, who)
	}
}

// late reports whether what ctx bounds took too long; it may have been called off.
func late(ctx context.Context) bool { return errors.Is(ctx.Err(), context.DeadlineExceeded) }

// lateFailure is why an upstream has no part in an answer that did not wait for it any
// longer.
func (u *upstreamConn) lateFailure() *failure {
	f := ownFailure(jsonrpc.TimedOut(u.up.Name))
	if u.starting() {
		if u.era == mcp.Legacy {
			f = ownFailure(u.slow())
		}
		f.cause = "still starting"
	}
	f.late = true
	return f
}

// lastTable returns what any client saw last of a list of the upstream, while it
// starts; nil if nobody has seen any.
func (u *upstreamConn) lastTable(w *view, k catalog.Kind) *catalog.Table {
	if !u.starting() {
		return nil
	}
	t := u.s.p.lastTable(u.tableKey(w.caps, k))
	if t != nil {
		u.s.mu.Lock()
		defer u.s.mu.Unlock()
		u.catalogLocked(w).tables[k] = t // what is listed can be called
	}
	return t
}
