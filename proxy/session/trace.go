package session

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// arrival is what who may follow a call is told of it.
func (s *session) arrival(c *call) observe.Arrival {
	a := observe.Arrival{Meta: c.notes.TraceContext()}
	if !s.ofPrincipal {
		a.ID = strings.Trim(c.ID.String(), `"`)
	}
	if t := c.msg.Trace; t != nil {
		a.HTTP = *t
	}
	if conn, ok := s.conn.(carried); ok {
		a.Transport = conn.Transport()
	}
	if a.Version, _ = c.notes.Text(mcp.Version); c.era == mcp.Legacy {
		s.mu.Lock()
		a.Version = s.handshake.version
		s.mu.Unlock()
	}
	return a
}

// traceKey is where the ctx of who works on a call has what follows it.
type traceKey struct{}

// following returns ctx for who works on c, so that what is asked for it is followed.
func following(ctx context.Context, c *call) context.Context {
	if t := c.trace; t != nil {
		return context.WithValue(ctx, traceKey{}, t)
	}
	return ctx
}

// traced begins to follow a request, whose params notes are of: for a call that is followed
// by t, or of the session's own if t is nil. It returns the params, as they may be edited, and
// the edits that tell the upstream. Nobody follows: none.
func (r *request) traced(t observe.Trace, params json.RawMessage, n *mcp.Notes) (json.RawMessage, []jsonrpc.Edit) {
	begin := r.conn.s.p.Hooks.FollowRequest
	switch {
	case t != nil:
		r.trace = t.Request(r.observed(), r.target())
	case r.call == nil && begin != nil:
		r.trace = begin(r.observed(), n.TraceContext())
	}
	if r.trace == nil {
		return params, nil
	}
	if params == nil {
		params = json.RawMessage(`{}`)
		n = mcp.ReadParams(r.Method, params)
	}
	return params, n.TraceEdits(r.trace.Context())
}

// target is the tool or prompt that r is for, if its upstream lists that; else "".
func (r *request) target() string {
	if r.listed != nil {
		return r.call.tool + r.call.prompt
	}
	return ""
}

// listedBy returns the tool or prompt that c is for as the upstream lists it; nil if it does
// not, as far as is known.
func (c *call) listedBy(u *upstreamConn) *observe.Listed {
	switch {
	case c.tool != "":
		return u.lists.table(c.view, catalog.Tools).Kept(c.tool)
	case c.prompt != "":
		return u.lists.table(c.view, catalog.Prompts).Kept(c.prompt)
	}
	return nil
}

// own returns params of the session's own for r: its id is the progress token, and what
// follows r, or the call that ctx belongs to, is told to the upstream.
func (r *request) own(ctx context.Context, params json.RawMessage) json.RawMessage {
	params = ownToken(r.Method, params, r.ID)
	if r.conn.s.p.Hooks.FollowRequest == nil {
		return params
	}
	t, _ := ctx.Value(traceKey{}).(observe.Trace)
	params, edits := r.traced(t, params, mcp.ReadParams(r.Method, params))
	return jsonrpc.Replace(params, edits...)
}
