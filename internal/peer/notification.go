package peer

import "github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"

// notified handles a notification.
func (p *Peer) notified(m *jsonrpc.Message) {
	switch m.Method {
	case "notifications/cancelled":
		if p.cancelledBy(m) {
			return
		}
	case "notifications/progress":
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

// cancelledBy takes out the request that the other side cancels, and reports whether there
// is one: not if it is answered or unknown, and not initialize, which must not be cancelled
// (2025-11-25 basic/utilities/cancellation).
func (p *Peer) cancelledBy(m *jsonrpc.Message) bool {
	at, id, ok := idIn(m, "requestId")
	if !ok {
		return false
	}
	p.mu.Lock()
	r := p.requests.Get(id)
	if r == nil || r.Method == "initialize" {
		p.mu.Unlock()
		return false
	}
	r.takeLocked()
	full := r.answerLocked(nil) // which may complete an array
	p.mu.Unlock()
	if full != nil {
		p.o.Full(full)
	}
	r.cancelled(m, at)
	return true
}

// progressed hands progress to the call whose token it has, and reports whether there is one.
func (p *Peer) progressed(m *jsonrpc.Message) bool {
	at, id, ok := idIn(m, "progressToken")
	if !ok {
		return false
	}
	c := p.Call(id)
	if c == nil || c.Progress == nil {
		return false
	}
	c.Progress(m, at)
	return true
}

// idIn returns an id that stands in the params of a notification, and where.
func idIn(m *jsonrpc.Message, key string) (at jsonrpc.Span, id jsonrpc.ID, ok bool) {
	var spans [1]jsonrpc.Span
	if jsonrpc.Find(m.Params, jsonrpc.Span{}, spans[:], key) != nil {
		return at, id, false
	}
	id, ok = jsonrpc.ParseID(spans[0].Of(m.Params))
	return spans[0], id, ok
}
