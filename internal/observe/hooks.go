package observe

import (
	"cmp"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Hooks are called when something happens, while the caller holds locks: they must return soon, and must
// not call the proxy. A nil hook is off and costs one branch. Hooks are functions rather than one sink of
// events because an event in an interface is an allocation, two for each request of a client, and because
// a nil hook saves the work of gathering its values.
//
// Each call of the first hook of a pair is followed by one call of the second, with the same values and an
// End.
type Hooks struct {
	// A client's session.
	SessionBegan func(Session)
	SessionEnded func(Session, End)

	// A request of a client. When it begins, its Upstream and Tool are not known yet.
	RequestBegan func(Request)
	RequestEnded func(Request, End)

	// A call to an upstream, which a session sends for a request or for itself. On a host: a request that a
	// server of the host received.
	CallBegan func(Call)
	CallEnded func(Call, End)

	// A server that this process runs: a local process, or a session with a remote server. A failed start
	// calls UpstreamEnded, too.
	UpstreamStarted func(Upstream)
	UpstreamEnded   func(Upstream, End)

	// A link to a host elsewhere.
	LinkUp   func(Link)
	LinkLost func(Link, End)

	// Happened reports an unexpected end. It reports the same id again when more is known.
	Happened func(Event)

	// RequestLost reports a request that was answered with the error of an event. The event may be reported
	// later, or by a host elsewhere.
	RequestLost func(Loss)

	// Forwarded reports a request that was passed on to another replica, when its response has ended. Its
	// Outcome is OK for any response that came whole, else Cancelled or Closed.
	Forwarded func(Forwarded, End)

	// Refused reports that a front end or a policy refused a client. The reason is one of a few words, and
	// fit for a label.
	Refused func(reason string)

	Follower Follower // nil for none
}

// A Follower traces requests of clients, and the calls that a session makes for itself. There is at most
// one, because it adds to the messages that upstreams receive. Its methods may return nil.
type Follower interface {
	Follow(Request, Arrival) Trace
	FollowCall(Call, TraceContext) CallTrace // the context is that of the call's own params, if any
}

// A Trace follows one request of a client. Several goroutines may call its methods.
type Trace interface {
	// ID returns the trace id in hex.
	ID() string

	// Call begins a call to an upstream for the request. The target is the tool or prompt if the upstream
	// lists it, else "". The CallTrace ends before the Trace or with it.
	Call(c Call, target string) CallTrace

	// End ends the request and its open calls.
	End(Request, End)
}

// A CallTrace follows one call to an upstream from its creation. The call may wait for its server before it
// is sent.
type CallTrace interface {
	ID() string            // of its trace, in hex
	Context() TraceContext // for the upstream
	Sent()
	End(Call, End)
}

// A TraceContext is what a message says about its trace.
type TraceContext = jsonrpc.TraceContext

// An Arrival is what is known about a new request besides the Request.
type Arrival struct {
	ID        string       // the client's id as text; "" in the session of a principal, whose clients use the same ids
	Transport string       // as in Session
	Version   string       // of the protocol; "" if not known yet
	Meta      TraceContext // from the params of the request
	HTTP      TraceContext // from the HTTP request that carried it
}

// A Request is one request of a client, from its arrival until it is answered or cancelled.
type Request struct {
	Session   string // as in the log
	Client    string // the client's name for itself; "" if not given
	Principal string // of the session, if it belongs to a principal
	Account   string // the principal as configured: for a JWT or a certificate its issuer; fit for a label
	Era       string // "legacy" or "modern"
	Method    string // "other" if MCP does not have it
	Upstream  string // that received it; "" for none or several

	// Tool is the upstream's own name of the called tool; "" for none. A sole upstream receives any name
	// that a client makes up.
	Tool string

	Prompt string // likewise, also for the completion of an argument

	// Listed belongs to the list entry of that tool or prompt, if the session has seen the list: the name is
	// then one of a bounded number. Else it is nil. Metrics keep their counters there, which saves lookups;
	// nothing else uses it.
	Listed *atomic.Value

	Trace string // the trace id; "" if not traced, and until the request ends
}

// A Call is one request of this side to an upstream.
type Call struct {
	Session  string // as in the log
	Upstream string
	Era      string
	Method   string        // "other" if MCP does not have it
	Listed   *atomic.Value // as in the Request that it is for; nil on a host
	Trace    string        // the trace id; "" if not traced
}

// Forwarded is an HTTP request of a client that another replica answers.
type Forwarded struct {
	Method string // GET, POST or DELETE, else [Other]
}

// Join returns hooks that call those of a and then those of b. A hook that both lack stays nil. If both have a
// Follower, that of a is used.
func Join(a, b Hooks) Hooks {
	return Hooks{
		SessionBegan:    both(a.SessionBegan, b.SessionBegan),
		SessionEnded:    bothEnds(a.SessionEnded, b.SessionEnded),
		RequestBegan:    both(a.RequestBegan, b.RequestBegan),
		RequestEnded:    bothEnds(a.RequestEnded, b.RequestEnded),
		CallBegan:       both(a.CallBegan, b.CallBegan),
		CallEnded:       bothEnds(a.CallEnded, b.CallEnded),
		UpstreamStarted: both(a.UpstreamStarted, b.UpstreamStarted),
		UpstreamEnded:   bothEnds(a.UpstreamEnded, b.UpstreamEnded),
		LinkUp:          both(a.LinkUp, b.LinkUp),
		LinkLost:        bothEnds(a.LinkLost, b.LinkLost),
		Happened:        both(a.Happened, b.Happened),
		RequestLost:     both(a.RequestLost, b.RequestLost),
		Forwarded:       bothEnds(a.Forwarded, b.Forwarded),
		Refused:         both(a.Refused, b.Refused),
		Follower:        cmp.Or(a.Follower, b.Follower),
	}
}

func both[T any](a, b func(T)) func(T) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(seen T) {
		a(seen)
		b(seen)
	}
}

func bothEnds[T any](a, b func(T, End)) func(T, End) {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return func(seen T, end End) {
		a(seen, end)
		b(seen, end)
	}
}
