package session

import (
	"context"

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
	t := u.lists.table(c.view, catalog.Tools)
	bad, err := catalog.Disagrees(t.Mirrors(tool), c.msg.Headers, c.notes)
	if err != nil {
		bad = invalidParams(err.Error())
	}
	return bad, t.Has(tool) && bad == nil || !u.lists.mayLearnTools(c.view)
}

// learnTools makes the upstream list its tools.
func (u *upstreamConn) learnTools(ctx context.Context, who asker) {
	ctx, cancel := context.WithTimeout(ctx, u.s.p.listTimeout())
	defer cancel()
	if !u.freshen(ctx, catalog.Tools, who) && late(ctx) {
		u.lists.noteTooLate()
	}
}
