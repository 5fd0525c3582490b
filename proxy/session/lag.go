package session

import (
	"context"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A lag is what an upstream owes to clients that did not wait for it.
type lag struct {
	u *upstreamConn // that it is of

	mu     sync.Mutex             // guards the fields below; nothing else is locked under it
	behind map[catalog.Kind]asker // lists that a client has seen without it
	aside  map[string]bool        // methods that it is asked for now
}

// heard asks the upstream, which has just answered something, for the lists that a client
// has seen without it.
func (g *lag) heard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for k, who := range g.behind {
		delete(g.behind, k)
		g.askLocked(k.Method(), func(ctx context.Context) { g.catchUp(ctx, k, who) })
	}
}

// owe notes that a client has seen a list without the upstream.
func (g *lag) owe(k catalog.Kind, who asker) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.behind == nil {
		g.behind = make(map[catalog.Kind]asker)
	}
	g.behind[k] = who
}

// ask runs fn, which asks the upstream for something that nobody waits for. It does nothing
// if the upstream is being asked for that already.
func (g *lag) ask(method string, fn func(ctx context.Context)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.askLocked(method, fn)
}

func (g *lag) askLocked(method string, fn func(ctx context.Context)) {
	if g.aside[method] || g.u.isHungUp() {
		return
	}
	if g.aside == nil {
		g.aside = make(map[string]bool)
	}
	g.aside[method] = true
	g.u.s.wg.Go(func() {
		ctx, cancel := context.WithTimeout(g.u.s.ctx, g.u.s.p.listTimeout())
		defer cancel()
		fn(ctx)
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.aside, method)
	})
}

// catchUp lists a kind for a client that has seen a list without the upstream, and
// tells it if there is anything to see.
func (g *lag) catchUp(ctx context.Context, k catalog.Kind, who asker) {
	li, _ := g.u.list(ctx, k, who)
	switch {
	case li == nil && late(ctx):
		g.owe(k, who)
	case li == nil:
	case g.u.era == mcp.Modern:
		g.u.s.subscriptions.changed(g.u, min(k, catalog.Resources)) // there is one notification for both
	default:
		g.u.s.news.compare(g.u.seen, k, li.Digest)
	}
}

// missed makes the client hear later of an upstream that is missing in a list since it was
// late. When an upstream has started, returned tells.
func (g *lag) missed(k catalog.Kind, who asker, f *failure) {
	switch ready := g.u.wakeUp(); {
	case g.u.era == mcp.Legacy && !ready:
	case f.skipped:
		g.ask(k.Method(), func(ctx context.Context) { g.catchUp(ctx, k, who) })
	default:
		g.owe(k, who)
	}
}

// returned runs when an upstream has answered initialize. It tells the client if the
// upstream lists something else than the client has seen of it. A list about which the
// client was told already, and has not looked, is not in lists. An upstream that ends
// meanwhile is not started for that.
func (g *lag) returned(a *attempt, lists [catalog.Kinds]bool) {
	for k := range catalog.Kinds {
		if !g.u.isOpen(a) {
			return
		}
		if lists[k] && g.u.s.news.matters(k) {
			ctx, cancel := context.WithTimeout(g.u.s.ctx, g.u.s.p.listTimeout())
			g.catchUp(ctx, k, asker{view: &g.u.s.views.legacy})
			cancel()
		}
	}
}
