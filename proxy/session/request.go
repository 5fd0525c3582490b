package session

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A request is a request of the client, from its arrival until it is settled or cancelled.
type request struct {
	*peer.Request
	observed

	// Static after construction.
	bad         *jsonrpc.Error // why it cannot be routed; nil if it can
	era         mcp.Era
	extension   bool               // the method is unknown, or of an extension
	upstreams   *upstreamSet       // the upstreams when it came
	forwarded   *jsonrpc.Forwarded // headers that came with it; nil for none
	caps        catalog.Digest     // of the client's capabilities, see lists.Client
	grant       *policy.Grant      // of the client; nil without policies
	clientClaim                    // modern era only

	// retry means that only the upstream that asked for the request may get it; modern era only.
	// Set before the request is forwarded.
	retry bool

	// msg is the request as it came. The goroutine that works on the request owns it. It is nil
	// after the last forward, so that its bytes are not kept until the answer.
	msg   *jsonrpc.Message
	notes *mcp.Notes // of msg

	// others are the upstreams to ask in turn if the previous one does not have the resource, see
	// lacksResource. Owned by whoever settles the call.
	others []*upstreamConn

	// seeks means that upstreams are asked in turn for an unknown method, see searched. fallback is the
	// error to answer if none of those asked has the resource or knows the method: the first of one that
	// may have it, else of one that could not be asked, or did not get the request; nil for the last
	// one's. Owned by whoever settles the call.
	seeks    bool
	fallback json.RawMessage

	// kind is the resultType of the answer; modern era only. Owned by whoever settles the call.
	kind string

	// told is true from the time when the acknowledgment of a subscription is being sent.
	told atomic.Bool

	mu     sync.Mutex                    // guards the fields below; whoever takes the request sees what was set before
	after  func(answer *jsonrpc.Message) // called with the answer before the client gets it
	sent   *call                         // the call to an upstream, once the request is forwarded
	kept   int                           // bytes of the request that count in session.kept
	cancel context.CancelFunc            // ends the goroutine that works on the request, if there is one
	use    *policy.Use                   // its count for the principal; nil for none
}

// observed has the values of a request for hooks.
type observed struct {
	began  time.Duration // arrival, by session.now; zero without hooks
	client string        // the name of a modern client, if hooks are set
	trace  observe.Trace // nil: no trace

	tool   string // the called tool, by the upstream's name. Set before it is sent
	prompt string // likewise
}

// count makes the request count for its principal until it is over.
func (r *request) count(use *policy.Use) {
	r.mu.Lock()
	r.use = use
	r.mu.Unlock()
	if !r.Open() { // whoever took it may have looked before
		use.End()
	}
}

// takeUse takes the count out of the request; the caller ends it.
func (r *request) takeUse() (use *policy.Use) {
	r.mu.Lock()
	defer r.mu.Unlock()
	use, r.use = r.use, nil
	return use
}

// works reports whether a goroutine works, or has worked, on the request.
func (r *request) works() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cancel != nil
}

// call returns the call to an upstream, nil if the request was not forwarded.
func (r *request) call() *call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent
}

// phase reports whether r, which was taken, may have run. A subscription runs from its beginning.
func (r *request) phase() jsonrpc.Phase {
	if call := r.Forwarded(); call != nil && call.Sent() || r.Method == mcp.MethodListen {
		return jsonrpc.InFlight
	}
	return jsonrpc.NotSent
}

// ownToken replaces the client's progress token in a call of the session's own. No client waits for
// its progress, but the token could be mistaken for one of the session's.
func ownToken(method string, params json.RawMessage, id jsonrpc.ID) json.RawMessage {
	n := mcp.ReadParams(method, params)
	if n.Err(mcp.InMeta, mcp.Token) != nil || !n.Has(mcp.Token) {
		return params
	}
	return jsonrpc.Replace(params, jsonrpc.Edit{Span: n.At(mcp.Token), With: id.Raw()})
}

// A call is a request that this side sent on an upstream connection.
type call struct {
	peer.Call
	conn           *upstreamConn
	request        *request               // that it serves; nil for the session's own
	onNotification func(*jsonrpc.Message) // handles notifications that belong to it; nil: dropped

	token []byte // the client's progress token, as it came; nil for none

	timeout timeout // with a lock of its own

	began  time.Duration     // when it was sent, by session.now, if hooks are set
	over   atomic.Int64      // likewise: when it was answered; zero before
	ended  observe.Outcome   // likewise: the outcome that a result states. Set before over
	listed *atomic.Value     // likewise: the tool or prompt of the call. Set before it is sent
	trace  observe.CallTrace // set before it is sent; nil: no trace
}

func (u *upstreamConn) newCall(a *attempt, method string) *call {
	c := &call{conn: u}
	a.peer.Mint(&c.Call, method)
	c.Value = c
	return c
}

// callOf returns the call of a peer.Call on an upstream connection; nil for none.
func callOf(pc *peer.Call) *call {
	if pc == nil {
		return nil
	}
	c, _ := pc.Value.(*call)
	return c
}

// A clientClaim is what a request of the modern era says about its client.
type clientClaim struct {
	level    int  // of log messages, from 1 for debug; 0 for none
	tasks    bool // the tasks extension: a task may answer the request
	extended bool // unknown extensions, which may have their own results
}

// identity returns the _meta of calls that the session makes for r. It has the client's
// description, because an upstream may offer different things to different clients. In the legacy
// era it is nil, because initialize has carried it.
func (r *request) identity() json.RawMessage {
	if r.era == mcp.Legacy {
		return nil
	}
	values := []jsonrpc.Value{
		{Key: mcp.KeyVersion, Text: r.notes.Raw(mcp.Version)},
		{Key: mcp.KeyClientInfo, Text: r.notes.Raw(mcp.ClientInfo)},
		{Key: mcp.KeyCapabilities, Text: r.notes.Raw(mcp.Capabilities)},
	}
	return jsonrpc.Set(nil, values...)
}

// listClient returns for whom lists are asked to route r.
func (r *request) listClient() lists.Client {
	return lists.Client{Caps: r.caps, Grant: r.grant, Meta: r.identity()}
}

// endingError returns the connection-closed error for a client whose own connection ends. The
// modern era reserves its usual code.
func (r *request) endingError(at jsonrpc.Phase) *jsonrpc.Error {
	code := jsonrpc.CodeConnectionClosed
	if r.era == mcp.Modern {
		code = jsonrpc.CodeInternalError
	}
	return jsonrpc.ConnectionClosed(code, "", jsonrpc.Cause{}, at)
}

// servedKey is the key of a request in a ctx.
type servedKey struct{}

// in returns ctx for the calls of the session's own that serve r. They pass on its trace and headers.
func (r *request) in(ctx context.Context) context.Context {
	if r.trace == nil && r.forwarded == nil {
		return ctx
	}
	return context.WithValue(ctx, servedKey{}, r)
}

// servedBy returns the request of a ctx; nil for none, or if it has nothing to pass on.
func servedBy(ctx context.Context) *request {
	r, _ := ctx.Value(servedKey{}).(*request)
	return r
}

// A handler begins to answer a request of the client, in each era that has its method. It must not
// wait; session.work runs anything that does. If it returns an error, that is the answer.
type handler func(*session, *request) *jsonrpc.Error

// sentAgain returns the params that are kept to repeat a request at restarted upstreams: its key
// member and its _meta.
func (r *request) sentAgain(key string) (json.RawMessage, *jsonrpc.Error) {
	values := []jsonrpc.Value{{Key: key, Text: r.notes.Raw(mcp.Key)}}
	meta := r.notes.Raw(mcp.InMeta)
	switch {
	case len(meta) > maxKeptMeta:
		return nil, jsonrpc.InvalidParams(`"_meta" is longer than 4 KiB`)
	case meta != nil:
		values = append(values, jsonrpc.Value{Key: "_meta", Text: meta})
	}
	return jsonrpc.Set(nil, values...), nil
}
