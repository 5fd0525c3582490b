package observe

import "github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"

// A Trace follows one call of a client. Several goroutines may call its methods.
type Trace interface {
	// ID is that of the trace, in hex.
	ID() string

	// Call begins a request to an upstream for the call, a part of the trace that ends before the call
	// or with it. The target is its tool or prompt if the upstream lists that; else "".
	Call(q Call, target string) CallTrace

	// End ends the call, and its open requests.
	End(Request, End)
}

// A CallTrace follows one request to an upstream from its creation: the request may wait for its server before it
// is sent.
type CallTrace interface {
	ID() string // as that of a Trace

	// Context is the trace context for the upstream.
	Context() TraceContext

	Sent() // now
	End(Call, End)
}

// A TraceContext is what a message says about the trace that it is part of.
type TraceContext = jsonrpc.TraceContext

// An Arrival is what is known of a call that begins, besides the Request.
type Arrival struct {
	ID        string       // the client's own, as text; "" in the session of a principal, which has clients with the same ids
	Transport string       // as of its Session
	Version   string       // of the protocol; "" if it is not known yet
	Meta      TraceContext // that the call says in its params
	HTTP      TraceContext // that the HTTP request says which brought the call
}
