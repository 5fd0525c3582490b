package session

import (
	"context"
	"encoding/json"
	"strings"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// arrival returns what a Follower needs to know about a request that has come.
func (s *session) arrival(r *request) observe.Arrival {
	a := observe.Arrival{Meta: r.notes.TraceContext(), Transport: s.transport}
	if !s.ofPrincipal {
		a.ID = strings.Trim(r.ID.String(), `"`)
	}
	if t := r.msg.Trace; t != nil {
		a.HTTP = *t
	}
	if a.Version, _ = r.notes.Text(mcp.Version); r.era == mcp.Legacy {
		_, a.Version = s.handshake.said()
	}
	return a
}

// traced begins the trace of a call whose params have the notes n, within t, or of the session's
// own if t is nil. It returns the params, and the edits that pass the trace context to the
// upstream; none if there is no trace.
func (c *call) traced(t observe.Trace, params json.RawMessage, n *mcp.Notes) (json.RawMessage, []jsonrpc.Edit) {
	follower := c.conn.hooks.Follower
	switch {
	case t != nil:
		c.trace = t.Call(c.observed(), c.target())
	case c.request == nil && follower != nil:
		c.trace = follower.FollowCall(c.observed(), n.TraceContext())
	}
	if c.trace == nil {
		return params, nil
	}
	if params == nil {
		params = json.RawMessage(`{}`)
		n = mcp.ReadParams(c.Method, params)
	}
	return params, n.TraceEdits(c.trace.Context())
}

// target returns the tool or prompt of the call, if its upstream lists it; else "".
func (c *call) target() string {
	if c.listed != nil {
		return c.request.tool + c.request.prompt
	}
	return ""
}

// listedBy returns the tool or prompt of the request as the upstream lists it; nil if it does not,
// as far as is known.
func (r *request) listedBy(u *upstreamConn) *atomic.Value {
	switch {
	case r.tool != "":
		return u.lists.Table(r.caps, catalog.Tools).Kept(r.tool)
	case r.prompt != "":
		return u.lists.Table(r.caps, catalog.Prompts).Kept(r.prompt)
	}
	return nil
}

// own returns the params of a call of the session itself, with its id as progress token, and with
// the trace context of the call or of ctx.
func (c *call) own(ctx context.Context, params json.RawMessage) json.RawMessage {
	params = ownToken(c.Method, params, c.ID)
	if c.conn.hooks.Follower == nil {
		return params
	}
	var t observe.Trace
	if r := servedBy(ctx); r != nil {
		t = r.trace
	}
	params, edits := c.traced(t, params, mcp.ReadParams(c.Method, params))
	return jsonrpc.Replace(params, edits...)
}
