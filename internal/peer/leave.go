package peer

import "github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"

// Servers of the commonest SDK answer a request twice, and die, when its handler is woken by
// the error of its own question and cancelled besides. So each call gets one stimulus: a
// call is marked when a request that it possibly waits for gets the one error, and a call
// that is marked is not cancelled.

// waitsFor reports whether c possibly waits for the answer to r: it was sent before, works
// on something, and nothing says otherwise.
func (c *Call) waitsFor(r *Request) bool {
	return c.sent && c.Works && c.n <= r.seq && (r.Message == nil || r.Message.Related.IsZero() || r.Of == c) &&
		(r.Task == "" || r.Task == c.Task)
}

// Refuse answers the request with the one connection-closed error, and marks the calls that
// possibly wait for it. It reports false if the request was cancelled or answered before.
func (r *Request) Refuse(err *jsonrpc.Error) bool {
	r.p.mu.Lock()
	if !r.over {
		for _, c := range r.p.calls.Each {
			c.marked = c.marked || c.waitsFor(r)
		}
	}
	r.p.mu.Unlock()
	return r.Fail(err)
}

// Leave clears up with another side that stays, for somebody who leaves: his requests get
// the one error, and his calls are cancelled, but for those that possibly wait for such a
// request. Those stay open and are returned.
func (p *Peer) Leave(requests []*Request, calls []*Call, err *jsonrpc.Error, reason string) (marked []*Call) {
	for _, r := range requests {
		r.Refuse(err)
	}
	for _, c := range calls {
		if c.isMarked() {
			marked = append(marked, c)
			continue
		}
		c.Cancel(reason)
	}
	return marked
}

func (c *Call) isMarked() bool {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	return c.marked && !c.over
}
