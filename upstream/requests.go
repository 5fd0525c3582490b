package upstream

import (
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// A requestWatch tells hooks of the requests that one server gets. Nil tells nobody.
type requestWatch struct {
	hooks *observe.Hooks
	seen  observe.Call // but for its method
}

// watchOf returns what tells of the requests to a server; nil if nobody wants to know.
func watchOf(hooks *observe.Hooks, id serverID) *requestWatch {
	if hooks.CallBegan == nil && hooks.CallEnded == nil {
		return nil
	}
	return &requestWatch{hooks, observe.Call{Session: id.session(), Upstream: id.upstream, Era: string(id.era)}}
}

func (w *requestWatch) began(c *openCall, m *jsonrpc.Message) {
	if w == nil {
		return
	}
	c.keep(m)
	if tell := w.hooks.CallBegan; tell != nil {
		tell(w.of(c))
	}
}

// ended tells of a request with its answer; nil: nobody waits for that any more.
func (w *requestWatch) ended(c *openCall, answer *jsonrpc.Message) {
	if w == nil {
		return
	}
	if tell := w.hooks.CallEnded; tell != nil {
		tell(w.of(c), observe.EndOf(c.began, answer))
	}
}

// lost tells of a request that has no answer, since its server is gone; nil: since its
// proxy is.
func (w *requestWatch) lost(c *openCall, end *jsonrpc.ClosedError) {
	if end == nil {
		w.ended(c, nil)
		return
	}
	w.ended(c, jsonrpc.NewError(c.id, end.Wire(jsonrpc.CodeInternalError, w.seen.Upstream, jsonrpc.InFlight)))
}

func (w *requestWatch) of(c *openCall) observe.Call {
	seen := w.seen
	seen.Method = c.method
	return seen
}
