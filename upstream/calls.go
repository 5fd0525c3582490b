package upstream

import (
	"bytes"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// An openCall is a call that the server has not answered.
type openCall struct {
	id    jsonrpc.ID
	seq   int
	kind  callKind
	works bool   // the server may send requests that belong to it
	task  string // the task that the call is about, as in inFlight.tasks

	began  time.Time // if the call is watched
	method string    // likewise
	params []byte    // likewise, of a short tools/call

	// marked is set if a request of the server that the call may wait for got our own
	// error, which ends the call. With a cancellation, too, servers of the Python SDK
	// (1.x) would answer twice and die.
	marked bool
}

// A serverRequest is a request of the server that the proxy has not answered.
type serverRequest struct {
	seq     int        // of the newest call when it came
	related jsonrpc.ID // the call that it belongs to; zero if the server named none
	task    string     // the task that it belongs to; "" if the server named none
}

// awaitedBy reports whether a call may wait for the answer to r.
func (r serverRequest) awaitedBy(c *openCall) bool {
	return c.works && c.seq <= r.seq && (r.related.IsZero() || r.related == c.id) && (r.task == "" || r.task == c.task)
}

type callKind byte

const (
	ordinary    callKind = iota
	initialize           // never cancelled
	createsTask          // cancelled as a task, when its id is known
	readsTask            // tasks/get: the result tells whether the task is finished
	endsTask             // tasks/result, tasks/cancel: after a result the task is finished
	discover             // modern: the first call to a server that many streams share; never cancelled
	listen               // modern: clients do not wait for its answer
)

// starts reports whether the server has started when it answers this call.
func (k callKind) starts() bool { return k == initialize || k == discover }

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
