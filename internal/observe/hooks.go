package observe

import (
	"cmp"
	"sync/atomic"
)

// Hooks are called where something happens, with the locks held there: they must return soon, and must not
// call the proxy. A nil one is off and costs one branch. A struct of functions, and not one sink for events:
// an event in an interface is an allocation, two for each call, and a nil function says what need not be
// gathered.
//
// Each call of the first of a pair is followed by one of the second, with the same values and an End.
type Hooks struct {
	// A client has a session.
	SessionBegan func(Session)
	SessionEnded func(Session, End)

	// A client has asked for something. Its Upstream and its Tool are known at the end: of a call that
	// began they are "".
	RequestBegan func(Request)
	RequestEnded func(Request, End)

	// A session has sent a request to an upstream, for a call or of its own. At a host: a server there
	// has received a request.
	CallBegan func(Call)
	CallEnded func(Call, End)

	// A server that is run from here starts: a process, or a session with a remote one. One that could
	// not be started has ended, too.
	UpstreamStarted func(Upstream)
	UpstreamEnded   func(Upstream, End)

	// A link to a host elsewhere came up, or was lost.
	LinkUp   func(Link)
	LinkLost func(Link, End)

	// Something has ended unexpectedly. It is called again, with the same id, when more is known of it.
	Happened func(Event)

	// A call was answered with the error of an event, which may be reported later, or by a host elsewhere.
	RequestLost func(Loss)

	// A front end, or a policy's limits or scopes, has refused a client.
	Refused func(Refusal)

	Follower Follower // follows calls; nil if nobody does
}

// A Follower follows calls, and the requests that a session makes for no call. It writes into what upstreams
// are sent, so there is one at the most. Each method may return nil.
type Follower interface {
	Follow(Request, Arrival) Trace
	FollowCall(Call, TraceContext) CallTrace // which may have a context in its own params
}

// A Refusal is why a client was not served.
type Refusal struct {
	Reason string // one of few words, fit for a label
}

// A Request is one request of a client, from its arrival until it is answered or cancelled.
type Request struct {
	Session   string // as in the log
	Client    string // what the client calls itself; "" if it has not said
	Principal string // whose request it is, if the session is that of a principal
	Account   string // the principal, as somebody has configured it: of a JWT or a certificate its issuer; fit for a label
	Era       string // "legacy" or "modern"
	Method    string // "other" for one that MCP does not have
	Upstream  string // that the call was passed to; "" for none or several

	// Tool is the upstream's own name of the called tool; "" for none. With a sole upstream tools are not
	// looked up: then it may be any name that a client made up.
	Tool string

	Prompt string // likewise, and what somebody completes an argument of

	// Listed is the list entry of that tool or prompt, if the session has seen it: then the name is one of
	// a bounded number. Else nil.
	Listed *Listed

	Trace string // the id of the trace that has recorded it; "" for none, and while it is open
}

// A Listed is the entry of a tool or prompt in an upstream's list. Whoever counts calls may keep its counters there
// instead of looking them up; nobody else uses it.
type Listed = atomic.Value

// A Call is a request to an upstream.
type Call struct {
	Session  string // as in the log
	Upstream string
	Era      string
	Method   string  // "other" for one that MCP does not have
	Listed   *Listed // the tool or prompt that it is for, as of a Request; a host does not know
	Trace    string  // the id of the trace that records it; "" for none
}

// Join returns hooks that call those of a, and then those of b. What neither has stays nil. If both have a
// Follower, that of a follows.
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
