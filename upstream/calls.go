package upstream

import (
	"bytes"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// seen returns the calls that are watched, without listens, which clients do not wait for.
func (f *inFlight) seen() (all []observe.OpenRequest) {
	var open []*openCall
	f.mu.Lock()
	for _, c := range f.calls.Each {
		if c.kind != listen && !c.began.IsZero() {
			open = append(open, c)
			all = append(all, observe.OpenRequest{Method: c.method, Began: c.began, WaitsFor: f.waitLocked(c)})
		}
	}
	f.mu.Unlock()
	for i, c := range open {
		all[i].Tool = c.tool()
	}
	return all
}

func (f *inFlight) waitLocked(c *openCall) observe.Wait {
	if f.requests.Any(func(r serverRequest) bool { return r.awaitedBy(c) }) {
		return observe.ForClient
	}
	return observe.ForUpstream
}

// maxParams bounds the params that are kept of a call, to read the name of its tool later.
const maxParams = 2 << 10

// maxTool bounds a tool's name for operators, in bytes.
const maxTool = 128

// keep records what operators may see of a call.
func (c *openCall) keep(m *jsonrpc.Message) {
	c.began, c.method = time.Now(), mcp.NameOf(m.Method)
	if m.Method == mcp.MethodToolsCall && len(m.Params) <= maxParams {
		c.params = bytes.Clone(m.Params)
	}
}

// tool returns the name of the tool that is called, "" for none or if it was not kept.
func (c *openCall) tool() string {
	if c.params == nil {
		return ""
	}
	name, _ := mcp.ReadParams(mcp.MethodToolsCall, c.params).Text(mcp.Key)
	return name[:min(len(name), maxTool)]
}

// A callWatch calls hooks for the calls of one server. Nil calls none.
type callWatch struct {
	hooks *observe.Hooks
	seen  observe.Call // without its method
}

// watchOf returns the callWatch of a server, nil if there are no hooks.
func watchOf(hooks *observe.Hooks, id serverID) *callWatch {
	if hooks.CallBegan == nil && hooks.CallEnded == nil {
		return nil
	}
	return &callWatch{hooks, observe.Call{Session: id.session(), Upstream: id.upstream, Era: string(id.era)}}
}

func (w *callWatch) began(c *openCall, m *jsonrpc.Message) {
	if w == nil {
		return
	}
	c.keep(m)
	if tell := w.hooks.CallBegan; tell != nil {
		tell(w.of(c))
	}
}

// ended reports the end of a call with its answer, nil if it was cancelled.
func (w *callWatch) ended(c *openCall, answer *jsonrpc.Message) {
	if w == nil {
		return
	}
	if tell := w.hooks.CallEnded; tell != nil {
		tell(w.of(c), observe.EndOf(c.began, answer))
	}
}

// lost reports the end of a call without an answer. end is the server's, nil if the proxy
// closed the stream.
func (w *callWatch) lost(c *openCall, end *jsonrpc.ClosedError) {
	if end == nil {
		w.ended(c, nil)
		return
	}
	w.ended(c, jsonrpc.NewError(c.id, end.Wire(jsonrpc.CodeInternalError, w.seen.Upstream, jsonrpc.InFlight)))
}

func (w *callWatch) of(c *openCall) observe.Call {
	seen := w.seen
	seen.Method = c.method
	return seen
}
