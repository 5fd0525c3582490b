package observe

import "github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"

// A Trace follows one call of a client on its way. Its methods may be called by several
// goroutines.
type Trace interface {
	// ID is that of the trace, in hex.
	ID() string

	// Request begins a request to an upstream for the call: a part of the trace, to be ended
	// before the call or with it. The target is the tool or prompt that it is for, if its
	// upstream lists that; else "".
	Request(q Request, target string) RequestTrace

	// End ends the call, and what is open of its requests.
	End(Call, End)
}

// A RequestTrace follows one request to an upstream, from when it is made: it may wait
// for its server before it is sent.
type RequestTrace interface {
	ID() string // as that of a Trace

	// Context is what the upstream is told of the trace.
	Context() TraceContext

	Sent() // now
	End(Request, End)
}

// A TraceContext is what a message says about the trace that it is part of.
type TraceContext = jsonrpc.TraceContext

// An Arrival is what is known of a call that begins, besides the call itself.
type Arrival struct {
	ID        string       // the client's own, as text; "" in the session of a principal, which has clients with the same ids
	Transport string       // as of its Session
	Version   string       // of the protocol; "" if it is not known yet
	Meta      TraceContext // that the call says in its params
	HTTP      TraceContext // that the HTTP request says which brought the call
}
