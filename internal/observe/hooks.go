package observe

import "sync/atomic"

// Hooks are called for what happens, where it happens and with its locks: they must
// return soon, and must not call the proxy. Those that are nil are off, and cost nothing.
//
// What began ends: each call of the first of a pair is followed by one of the second,
// with the same values and an End.
type Hooks struct {
	// A client has a session.
	SessionBegan func(Session)
	SessionEnded func(Session, End)

	// A client has asked for something. What it is and who it is for is known at the
	// end: the Upstream and the Tool of a call that began are "".
	CallBegan func(Call)
	CallEnded func(Call, End)

	// A session has sent a request to an upstream, for a call or of its own. At a host: a
	// server there has got a request.
	RequestBegan func(Request)
	RequestEnded func(Request, End)

	// A call begins, or a request that the session makes for no call: who wants to follow it
	// returns how, else nil. Unlike the other hooks these are called for one party alone:
	// only one can write into what upstreams are sent. A request that is for no call may have
	// a context in its own params.
	Follow        func(Call, Arrival) Trace
	FollowRequest func(Request, TraceContext) RequestTrace

	// A server that is run from here starts: a process, or a session with a remote one. One
	// that could not be started has ended, too.
	UpstreamStarted func(Upstream)
	UpstreamEnded   func(Upstream, End)

	// A link to a host elsewhere. What was up may be lost.
	LinkUp   func(Link)
	LinkLost func(Link, End)

	// Something has ended though nobody wanted it to. It is told again, under the same id,
	// when more is known of it.
	Happened func(Event)

	// A call was answered with the error of an event, which may be told of later, or by a
	// host elsewhere.
	CallLost func(Loss)

	// A client was refused for who it is: by a front end, or by a policy's limits or scopes.
	Refused func(Refusal)
}

// A Refusal is why a client was not served.
type Refusal struct {
	Reason string // one of few words, fit for a label
}

// A Call is one request of a client, from its arrival until it is answered or given up.
type Call struct {
	Session   string // as in the log
	Client    string // what the client calls itself; "" if it has not said
	Principal string // whose request it is, if the session is that of a principal
	Account   string // the principal, as somebody has configured it: of a JWT or a certificate its issuer; fit for a label
	Era       string // "legacy" or "modern"
	Method    string // "other" for one that MCP does not have
	Upstream  string // that the call was passed to; "" for none or several

	// Tool is what the upstream calls the tool that it was called for; "" for none. Of the
	// only upstream there is, nobody looks tools up: then it is any name that a client said.
	Tool string

	Prompt string // likewise, and what somebody completes an argument of

	// Listed is that tool or prompt as the upstream lists it, as far as the session has seen
	// its lists: then the name is one of as many as the upstream has. Else nil.
	Listed *Listed

	Trace string // the id of the trace that has recorded it; "" for none, and while it is open
}

// A Listed is a tool or prompt in a list of an upstream. Who counts calls may keep there what
// it counts those of that one with, and need not look it up; others leave it alone.
type Listed = atomic.Value

// A Request is one that an upstream was sent.
type Request struct {
	Session  string // as in the log
	Upstream string
	Era      string
	Method   string  // "other" for one that MCP does not have
	Listed   *Listed // the tool or prompt that it is for, as of a Call; a host does not know
	Trace    string  // the id of the trace that records it; "" for none
}
