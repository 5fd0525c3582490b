package session

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// Nobody waits twice. An upstream that was once not there in time holds up no later
// initialize or list that another one can answer, until it has answered. Then clients hear
// of it by list_changed.

// starts means the start, in each era.
const starts = mcp.MethodInitialize

// late reports whether nobody is to wait for the upstream's answer to a method if another
// one can answer. An upstream that has started here is not late to start, whatever other
// sessions saw.
func (u *upstreamConn) late(method string) bool {
	if u.lazy() && !u.answers() && u.entry(nil) != nil {
		return false // the catalog answers
	}
	return method != starts && u.s.router.memory.wasLate(u.up.Name, method) || !u.started() && u.s.router.memory.wasLate(u.up.Name, starts)
}

// noteLate notes that the upstream did not answer in time.
func (u *upstreamConn) noteLate(method string) {
	u.s.router.memory.noteLate(u.up.Name, method)
	if !u.started() {
		u.s.router.memory.noteLate(u.up.Name, starts)
	}
}

// is reports whether there is an attempt that has not ended, of which something is true.
func (u *upstreamConn) is(so func(*attempt) bool) bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.attempt != nil && !u.attempt.ended && so(u.attempt)
}

// alive reports whether the upstream has answered initialize.
func (u *upstreamConn) alive() bool { return u.is(func(a *attempt) bool { return a.ready }) }

// started reports whether the upstream has answered anything.
func (u *upstreamConn) started() bool { return u.is(func(a *attempt) bool { return a.heard }) }

// starting reports whether the upstream has not answered anything yet.
func (u *upstreamConn) starting() bool { return u.is(func(a *attempt) bool { return !a.heard }) }

// noteAliveLocked notes that the upstream has answered something. It may answer now what it
// was too late for before.
func (u *upstreamConn) noteAliveLocked(a *attempt) {
	if !a.heard {
		a.heard = true
		u.s.router.memory.noteInTime(u.up.Name, starts)
		u.s.router.memory.noteInTime(u.up.Name, mcp.MethodDiscover) // that is how the modern era starts
	}
	u.catchUp.heard()
}

// noteAlive is noteAliveLocked for an acknowledgment, which is no answer.
func (u *upstreamConn) noteAlive() {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if !u.attempt.ended {
		u.noteAliveLocked(u.attempt)
	}
}

// noteAnswer is noteAliveLocked for an answer, whoever waits for it.
func (u *upstreamConn) noteAnswer(answer *jsonrpc.Message) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if a := u.attempt; answer.Result != nil && a.ready && !a.ended {
		u.noteAliveLocked(a)
	}
}

// late reports whether what ctx bounds took too long, and was not cancelled.
func late(ctx context.Context) bool { return errors.Is(ctx.Err(), context.DeadlineExceeded) }

// lateFailure is why an upstream has no part in an answer that did not wait for it.
func (u *upstreamConn) lateFailure() *failure {
	f := ownFailure(jsonrpc.TimedOut(u.up.Name))
	if u.starting() {
		if u.era == mcp.Legacy {
			f = ownFailure(u.slow())
		}
		f.cause = jsonrpc.CauseStillStarting.String()
	}
	f.late = true
	return f
}

// A failure is why one upstream has no part in an answer made of many: its own error, or
// ours about it.
type failure struct {
	wire        json.RawMessage
	cause       string // for the log
	unsupported bool   // the upstream has no such list, whatever it declared
	late        bool   // it was not waited for any longer
	skipped     bool   // or not at all
}

func ownFailure(err *jsonrpc.Error) *failure {
	cause := err.Message
	if data, ok := err.Data.(jsonrpc.ErrorData); ok && !data.Cause.IsZero() {
		cause = data.Cause.String()
	}
	return &failure{wire: err.Raw(), cause: cause}
}

// slow is the error of what does not wait for the start any longer.
func (u *upstreamConn) slow() *jsonrpc.Error {
	return u.lost(&jsonrpc.ClosedError{Cause: jsonrpc.CauseStartTimeout})
}

// A catchUp is what an upstream owes to clients that did not wait for it.
type catchUp struct {
	u *upstreamConn // that it is of

	mu     sync.Mutex             // guards the fields below; nothing else is locked under it
	behind map[catalog.Kind]asker // lists that a client has seen without it
	aside  map[string]bool        // methods that it is asked for now
}

// heard asks the upstream, which has just answered something, for the lists that a client
// has seen without it.
func (g *catchUp) heard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for k, who := range g.behind {
		delete(g.behind, k)
		g.askLocked(k.Method(), func(ctx context.Context) { g.run(ctx, k, who) })
	}
}

// owe notes that a client has seen a list without the upstream.
func (g *catchUp) owe(k catalog.Kind, who asker) {
	g.mu.Lock()
	defer g.mu.Unlock()
	put(&g.behind, k, who)
}

// ask runs fn, which asks the upstream for something that nobody waits for. It does nothing
// if the upstream is being asked for that already.
func (g *catchUp) ask(method string, fn func(ctx context.Context)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.askLocked(method, fn)
}

func (g *catchUp) askLocked(method string, fn func(ctx context.Context)) {
	if g.aside[method] || g.u.isHungUp() {
		return
	}
	put(&g.aside, method, true)
	g.u.s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(g.u.s.ctx, g.u.s.router.listTimeout())
		defer cancel()
		fn(ctx)
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.aside, method)
	})
}

// run lists a kind for a client that has seen a list without the upstream, and
// tells it if there is anything to see.
func (g *catchUp) run(ctx context.Context, k catalog.Kind, who asker) {
	li, _ := g.u.list(ctx, k, who)
	li = who.visible(g.u, k, li)
	switch {
	case li == nil && late(ctx):
		g.owe(k, who)
	case li == nil:
	case g.u.era == mcp.Modern:
		g.u.s.subscriptions.changed(g.u, min(k, catalog.Resources)) // there is one notification for both
	default:
		g.u.s.listChanges.compare(g.u.shown, k, li.Digest)
	}
}

// missed makes the client hear later of an upstream that is missing in a list since it was
// late. When an upstream has started, returned tells.
func (g *catchUp) missed(k catalog.Kind, who asker, f *failure) {
	if g.u.isIdle() {
		g.u.beginTrial(who) // after which relisted tells
		return
	}
	switch ready := g.u.wakeUp(); {
	case g.u.era == mcp.Legacy && !ready:
	case f.skipped:
		g.ask(k.Method(), func(ctx context.Context) { g.run(ctx, k, who) })
	default:
		g.owe(k, who)
	}
}

// returned runs when an upstream has answered initialize. It tells the client if the
// upstream lists something else than the client has seen of it. A list about which the
// client was told already, and has not looked, is not in lists. An upstream that ends
// meanwhile is not started for that.
func (g *catchUp) returned(a *attempt, lists [catalog.Kinds]bool) {
	for k := range catalog.Kinds {
		if !g.u.isOpen(a) {
			return
		}
		if lists[k] && g.u.s.listChanges.matters(k) {
			ctx, cancel := context.WithTimeout(g.u.s.ctx, g.u.s.router.listTimeout())
			g.run(ctx, k, asker{view: &g.u.s.views.legacy, grant: g.u.s.grant()})
			cancel()
		}
	}
}
