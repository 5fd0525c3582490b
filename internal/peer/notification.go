package peer

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// notified handles a notification.
func (p *Peer) notified(m *jsonrpc.Message) {
	switch m.Method {
	case mcp.MethodCancelled:
		if p.cancelledBy(m) {
			return
		}
	case mcp.MethodProgress:
		if p.progressed(m) {
			return
		}
	}
	p.mu.Lock()
	of := p.relatedLocked(m)
	p.mu.Unlock()
	if p.o.Notified != nil {
		p.o.Notified(m, of)
	}
}

// cancelledBy takes the request that the other side cancels, and reports whether there is one.
// Answered and unknown requests cannot be cancelled, and initialize must not be (2025-11-25
// basic/utilities/cancellation).
func (p *Peer) cancelledBy(m *jsonrpc.Message) bool {
	n := mcp.Read(m)
	id, ok := n.ID(mcp.Key)
	if !ok {
		return false
	}
	p.mu.Lock()
	r := p.requests.Get(id)
	if r == nil || r.Method == mcp.MethodInitialize {
		p.mu.Unlock()
		return false
	}
	r.takeLocked()
	full := r.answerLocked(nil) // which may complete an array
	p.mu.Unlock()
	p.tellFull(full)
	r.cancelled(m, n.At(mcp.Key))
	return true
}

// progressed passes progress to the call with its token, and reports whether there is one.
func (p *Peer) progressed(m *jsonrpc.Message) bool {
	n := mcp.Read(m)
	id, ok := n.ID(mcp.Key)
	if !ok {
		return false
	}
	c := p.Call(id)
	switch {
	case c == nil:
		return false
	case c.Progress != nil:
		c.Progress(m, n.At(mcp.Key))
	case p.o.Progress != nil:
		p.o.Progress(c, m, n.At(mcp.Key))
	default:
		return false
	}
	return true
}
