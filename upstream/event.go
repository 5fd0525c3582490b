package upstream

import (
	"cmp"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// happened returns the event of a server's end, with the state that follows. cause is the
// server's own; the errors may have another.
func (r *restart) happened(kind observe.EventKind, cause jsonrpc.Cause, end *jsonrpc.ClosedError, inARow int) observe.Event {
	e := observe.EventOf(kind, r.id.upstream, end)
	e.Session, e.Era, e.Failures = r.id.session(), string(r.id.era), inARow
	switch cause = cmp.Or(cause, end.Cause); cause.Kind {
	case jsonrpc.KindExited:
		e.ExitStatus = &cause.Status
	case jsonrpc.KindKilled:
		e.Signal = cause.Detail
	}
	r.in.mu.Lock()
	defer r.in.mu.Unlock()
	if st := r.statusLocked(); st.State == StateWaiting || st.State == StateCrashLoop {
		e.State, e.Next = string(st.State), st.Next
	}
	return e
}

// tellEvent calls the hook for the end of a stream's server, if the end is an event. It does
// so before clients get the event's id, so that they can look it up. It returns the event,
// without an id if there was none.
func (s *stream) tellEvent(e ending, inARow int) observe.Event {
	tell := s.restart.in.hooks.Happened
	if tell == nil || e.end == nil || e.ofMany {
		return observe.Event{}
	}
	var kind observe.EventKind
	switch {
	case e.outcome == died:
		kind = observe.ServerEnded
	case e.outcome == startFailed:
		kind = observe.ServerNotBegun
	case e.outcome == intended && e.inFlight > 0:
		kind = observe.StoppedInUse
	default:
		return observe.Event{}
	}
	event := s.restart.happened(kind, e.cause, e.end, inARow)
	var now Status
	s.addStatus(&now)
	event.InFlight, event.Unusable, event.Began, event.PID, event.Stderr = e.inFlight, now.Unusable, now.Started, now.PID, now.Stderr
	event.Calls, event.CallsLeftOut = lostCalls(s.calls())
	tell(event)
	return event
}

// mostLost bounds the lost calls that one event lists.
const mostLost = 20

// lostCalls returns the oldest of the calls that were lost with their server, and the number
// of the others.
func lostCalls(open []observe.OpenRequest) (lost []observe.LostRequest, leftOut int) {
	slices.SortFunc(open, func(a, b observe.OpenRequest) int { return a.Began.Compare(b.Began) })
	leftOut = max(len(open)-mostLost, 0)
	for _, c := range open[:len(open)-leftOut] {
		lost = append(lost, observe.LostRequest{Session: c.Session, Method: c.Method, Tool: c.Tool, AgeMs: time.Since(c.Began).Milliseconds()})
	}
	return lost, leftOut
}

// tellRest repeats an event with the last lines on stderr. They are complete only now, after ending.tell.
func (s *stream) tellRest(event observe.Event) {
	var now Status
	if s.addStatus(&now); event.ID != "" && len(now.Stderr) > 0 {
		event.Stderr = now.Stderr
		s.restart.in.hooks.Happened(event)
	}
}

// tellOtherEra calls the hook for a stream that has ended because its server speaks the other
// era.
func (h *Host) tellOtherEra(id serverID, end *jsonrpc.ClosedError) {
	if end.Event == "" { // otherwise other goroutines may read it now
		end.Event = jsonrpc.NewEvent()
	}
	if h.Hooks.Happened != nil {
		e := observe.EventOf(observe.ServerNotBegun, id.upstream, end)
		e.Session, e.Era = id.session(), string(id.era)
		h.Hooks.Happened(e)
	}
}

// slow calls the hook for a client of a shared server that did not read.
func (h *Host) slow(upstream, session string, end *jsonrpc.ClosedError, open int) {
	e := observe.EventOf(observe.ClientTooSlow, upstream, end)
	e.Session, e.InFlight = session, open
	h.Hooks.Happened(e)
}

// Calls returns the unanswered calls of all running servers, in no order. It needs
// Hooks.CallBegan or CallEnded, without which the times of calls are not kept. It knows
// nothing about clients.
func (h *Host) Calls() (all []observe.OpenRequest) {
	h.once.Do(h.init)
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.streams {
		all = append(all, s.calls()...)
	}
	return all
}

func (s *stream) calls() []observe.OpenRequest {
	var st Status
	s.addStatus(&st)
	all := s.inFlight.seen()
	for i := range all {
		c := &all[i]
		c.Session, c.Upstream, c.Era = s.id.session(), s.name, string(s.id.era)
		if st.State == StateStarting {
			c.WaitsFor = observe.ForStart
		}
	}
	return all
}
