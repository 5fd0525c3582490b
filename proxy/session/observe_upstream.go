package session

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// observeEnd reports the end of an upstream connection that this side has chosen. The host reports
// all others.
func (u *upstreamConn) observeEnd(said, told *jsonrpc.ClosedError, inFlight int) {
	tell := u.hooks.Happened
	if tell == nil || told.Cause.IsZero() || said.Event == "" {
		return
	}
	if said.Event == told.Event || inFlight == 0 {
		return
	}
	e := observe.EventOf(observe.StoppedInUse, u.up.Name, told)
	e.Session, e.Era, e.InFlight = u.session, string(u.era), inFlight
	tell(e)
}

// observeSent reports that a call to an upstream is being sent.
func observeSent(pc *peer.Call) {
	c := callOf(pc)
	h := c.conn.hooks
	if h.CallBegan == nil && h.CallEnded == nil && c.trace == nil {
		return
	}
	c.began = c.conn.now()
	if h.CallBegan != nil {
		h.CallBegan(c.observed())
	}
	if c.trace != nil {
		c.trace.Sent()
	}
}

// observeOver reports that a call to an upstream is over.
func observeOver(pc *peer.Call, answer *jsonrpc.Message, lost *peer.Lost) {
	c := callOf(pc)
	u := c.conn
	if c.Method != mcp.MethodListen { // whose end may be for a rest
		u.noteUse()
	}
	tell := u.hooks.CallEnded
	if tell == nil && c.trace == nil {
		return
	}
	if lost != nil {
		answer = jsonrpc.NewError(c.ID, lost.Wire(u.up.Name))
	}
	over := u.now()
	seen, end := c.observed(), observe.EndAt(u.began.Add(over), over-c.began, answer)
	if answer != nil && answer.Error == nil {
		c.ended = end.Outcome
	}
	c.over.Store(int64(over))
	if c.trace != nil {
		c.trace.End(seen, end)
	}
	if tell != nil {
		tell(seen, end)
	}
}

func (c *call) observed() observe.Call {
	seen := observe.Call{Session: c.conn.session, Upstream: c.conn.up.Name, Era: string(c.conn.era), Method: mcp.NameOf(c.Method), Listed: c.listed}
	if c.trace != nil {
		seen.Trace = c.trace.ID()
	}
	return seen
}
