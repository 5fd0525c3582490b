package session

import (
	"context"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// checkHeaders returns what is wrong with the headers of a call that goes to an
// upstream's tool, nil for nothing as far as is known. It is not sure if a fresh
// list of the tools could say something else.
func (c *call) checkHeaders(u *upstreamConn, k catalog.Kind, tool string) (bad *jsonrpc.Error, sure bool) {
	if k != catalog.Tools || c.msg.Headers == nil {
		return nil, true
	}
	t := u.table(c.view, catalog.Tools)
	bad, err := catalog.Disagrees(t.Mirrors(tool), c.msg.Headers, c.notes)
	if err != nil {
		bad = invalidParams(err.Error())
	}
	return bad, t.Has(tool) && bad == nil || !u.mayLearnTools(c.view)
}

// relearn is how long calls go unchecked, and do not wait, once an upstream did not
// list its tools in time for one of them.
const relearn = time.Minute

// mayLearnTools reports whether the upstream should list its tools so that a call
// can be checked.
func (u *upstreamConn) mayLearnTools(w *view) bool {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.staleLocked(w, catalog.Tools) && (u.tooLate.IsZero() || time.Since(u.tooLate) >= relearn)
}

// learnTools makes the upstream list its tools.
func (u *upstreamConn) learnTools(ctx context.Context, who asker) {
	ctx, cancel := context.WithTimeout(ctx, u.s.p.listTimeout())
	defer cancel()
	tooLate := !u.freshen(ctx, catalog.Tools, who) && late(ctx)
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	if tooLate {
		u.tooLate = time.Now()
	}
}
