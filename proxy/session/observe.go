package session

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// Sessions returns the open sessions, oldest first.
func (p *Router) Sessions() []observe.Session {
	var all []observe.Session
	for _, s := range p.running() {
		all = append(all, s.observed())
	}
	slices.SortFunc(all, func(a, b observe.Session) int {
		return cmp.Or(a.Began.Compare(b.Began), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// observed describes the session for operators.
func (s *session) observed() observe.Session {
	hello, _ := s.handshake.said()
	listens := s.subscriptions.Len()
	_, open := s.client.Open()
	client := s.hello.Load()
	if client == nil && !s.ofPrincipal { // there may be several clients of a principal
		client = s.last.Load()
	}
	seen := observe.Session{
		ID: s.id(), Client: client.text(), Principal: s.name, Transport: s.transport, Resumed: s.resumed, Began: s.began,
		InFlight: max(open-listens, 0), Listens: listens, QueuedBytes: s.client.Waiting(), Dropped: int(s.overRate.Load()),
	}
	switch {
	case hello != nil:
		seen.Era = string(mcp.Legacy)
	case s.ofPrincipal || s.upstreams.modern.Load() != nil:
		seen.Era = string(mcp.Modern)
	}
	return seen
}

// nameOf is nameIn with a cache of the last clientInfo.
func (s *session) nameOf(info json.RawMessage) string {
	last := s.last.Load()
	if last != nil && bytes.Equal(last.info, info) {
		return last.name
	}
	last = &clientName{info: bytes.Clone(info), name: nameIn(info)}
	if len(info) <= maxInfo {
		s.last.Store(last)
	}
	return last.name
}

// maxInfo bounds the clientInfo that is kept, in bytes.
const maxInfo = 1024

func (s *session) observeBegan() {
	if tell := s.router.Hooks.SessionBegan; tell != nil {
		tell(s.observed())
	}
}

func (s *session) observeEnded() {
	tell := s.router.Hooks.SessionEnded
	if tell == nil {
		return
	}
	end := observe.End{Took: time.Since(s.began), Outcome: observe.OK}
	switch cause := context.Cause(s.ctx); {
	case isGone(cause):
		end.Cause = jsonrpc.EndOf(cause, jsonrpc.CauseClientGone).Cause.Kind.String()
	case !errors.Is(cause, errDrained):
		end.Outcome, end.Cause = observe.Closed, jsonrpc.EndOf(cause, jsonrpc.CauseHostStopped).Cause.Kind.String()
	}
	tell(s.observed(), end)
}

// arrivedAt returns when the request arrived.
func (r *request) arrivedAt() time.Time { return r.upstreams.s.began.Add(r.began) }

// observeRequest reports that a request has come. All of them end in [session.deliver].
func (s *session) observeRequest(r *request) {
	h := &s.router.Hooks
	if h.RequestBegan == nil && h.RequestEnded == nil && h.CallEnded == nil && h.Follower == nil && h.RequestLost == nil {
		return
	}
	r.began = s.now()
	if r.era == mcp.Modern {
		r.client = s.nameOf(r.notes.Raw(mcp.ClientInfo))
	}
	if h.RequestBegan != nil {
		h.RequestBegan(s.observedRequest(r))
	}
	if h.Follower != nil {
		r.trace = h.Follower.Follow(s.observedRequest(r), s.arrival(r))
	}
}

// observeAnswer reports that a request is over. answer is nil for a cancelled one.
func (s *session) observeAnswer(r *request, answer *jsonrpc.Message) {
	if answer != nil && answer.Error != nil && s.router.Hooks.RequestLost != nil {
		s.observeLost(r, answer.Error)
	}
	tell, trace := s.router.Hooks.RequestEnded, r.trace
	if tell == nil && trace == nil {
		return
	}
	seen := s.observedRequest(r)
	c := callOf(r.Forwarded())
	if c != nil {
		seen.Upstream, seen.Tool, seen.Prompt, seen.Listed = c.conn.up.Name, r.tool, r.prompt, c.listed
	}
	end := s.endOf(r, c, answer)
	if trace != nil {
		seen.Trace = trace.ID()
		trace.End(seen, end)
	}
	if tell != nil {
		tell(seen, end)
	}
}

// endOf returns how a request ended whose last call, if any, was c: with the end of c, if that is
// over.
func (s *session) endOf(r *request, c *call, answer *jsonrpc.Message) observe.End {
	var over time.Duration
	if c != nil {
		over = time.Duration(c.over.Load())
	}
	switch {
	case over == 0:
		over = s.now()
	case c.ended != "" && answer != nil && answer.Error == nil: // known already
		return observe.End{At: s.began.Add(over), Took: over - r.began, Outcome: c.ended}
	}
	return observe.EndAt(s.began.Add(over), over-r.began, answer)
}

// observeLost reports a request that gets the error of an event, if answer is one.
func (s *session) observeLost(r *request, answer json.RawMessage) {
	lost, ok := observe.LossOf(answer)
	if !ok {
		return
	}
	upstream := lost.Upstream
	lost.Request = s.observedRequest(r)
	lost.Upstream, lost.Tool = upstream, r.tool
	if c := callOf(r.Forwarded()); c != nil {
		lost.Upstream = c.conn.up.Name // whatever the error says
	}
	lost.Took = s.now() - r.began
	s.router.Hooks.RequestLost(lost)
}

func (s *session) observedRequest(r *request) observe.Request {
	return observe.Request{Session: s.id(), Client: s.clientOf(r), Principal: s.name, Account: s.account, Era: string(r.era), Method: mcp.NameOf(r.Method)}
}

// clientOf returns the client's name of itself in a request.
func (s *session) clientOf(r *request) string {
	if r.era == mcp.Legacy {
		return s.hello.Load().text()
	}
	return r.client
}

// tapped returns the client's Conn, wrapped for operators.
func (s *session) tapped(c jsonrpc.Conn) jsonrpc.Conn {
	return s.router.Tap.Conn(observe.Point{Side: observe.SideClient, Session: s.id(), Who: s.sender}, c)
}
