package session

import (
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// Calls returns what clients wait for, the oldest first, and how many there are beside that:
// it tells of so many at most. When they began is known if Hooks tell of calls. Subscriptions are not among them: nobody waits for their
// answers. What a call waits for is what can be seen of that here; the host knows more.
func (p *Router) Calls(most int) (calls []observe.OpenCall, leftOut int) {
	var open []*call
	for _, s := range p.running() {
		for _, r := range s.client.Requests(nil) {
			if r.Method != mcp.MethodListen {
				open = append(open, r.Value.(*call))
			}
		}
	}
	slices.SortFunc(open, func(a, b *call) int { return a.came().Compare(b.came()) })
	if len(open) > most {
		open, leftOut = open[:most], len(open)-most
	}
	for _, c := range open {
		calls = append(calls, c.inFlight())
	}
	return calls, leftOut
}

// maxTool bounds what is told of a tool's name, in bytes: of a sole upstream a client may say
// any.
const maxTool = 128

// inFlight is what can be seen of a call.
func (c *call) inFlight() observe.OpenCall {
	s := c.upstreams.s
	seen := observe.OpenCall{
		Session: s.id(), Client: s.clientOf(c), Principal: s.name, Era: string(c.era), Method: mcp.NameOf(c.Method), Began: c.came(),
	}
	if conn, ok := s.conn.(carried); ok {
		seen.Transport = conn.Transport()
	}
	questions := s.client.Calls(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := c.sent; r != nil {
		seen.Upstream, seen.Tool = r.conn.up.Name, c.tool[:min(len(c.tool), maxTool)]
		seen.WaitsFor, seen.Detail = r.waitsLocked(questions)
		return seen
	}
	var names []string
	seen.WaitsFor, names = c.upstreams.waitLocked()
	if seen.Detail = listed(names); len(names) == 1 {
		seen.Upstream, seen.Detail = names[0], ""
	}
	return seen
}

// waitsLocked returns what a request that was passed to an upstream waits for. The questions
// are those that the client has not answered.
func (r *request) waitsLocked(questions []*peer.Call) (observe.Wait, string) {
	u := r.conn
	switch a := u.attempt; {
	case a == nil || a.ended:
	case a.conn == nil:
		return observe.ForLink, ""
	case !a.ready:
		return observe.ForStart, ""
	case !r.Sent():
		return observe.ForRoom, "not sent: its server does not read"
	}
	for _, q := range questions {
		if q.Value.(*serverRequest).conn != u {
			continue
		}
		may, sure := r.MayWait(q.For)
		switch {
		case sure:
			return observe.ForClient, mcp.NameOf(q.Method)
		case may:
			return observe.ForClient, mcp.NameOf(q.Method) + ", which may be for another call"
		}
	}
	return observe.ForUpstream, ""
}

// waitLocked returns what a call waits for that the session itself works on, and the names
// of the upstreams that are the reason.
func (set *upstreamSet) waitLocked() (wait observe.Wait, names []string) {
	var starting, asked []string
	for _, u := range set.conns {
		switch a := u.attempt; {
		case a == nil:
		case !a.ended && !a.ready, a.ended && !a.heard && set.only() == u: // which startup.insist starts again
			starting = append(starting, u.up.Name)
		case a.ended:
		case len(a.peer.Calls(isOwn)) > 0:
			asked = append(asked, u.up.Name)
		}
	}
	switch {
	case starting != nil:
		return observe.ForStart, starting
	case asked != nil:
		return observe.ForUpstream, asked
	}
	return observe.ForProxy, nil
}

// isOwn reports whether a call to an upstream is one of the session's own that somebody
// waits for.
func isOwn(c *peer.Call) bool {
	r := requestOf(c)
	return r != nil && r.call == nil && c.Method != mcp.MethodListen
}

// maxListed bounds how many names of upstreams are told where one is not enough.
const maxListed = 8

func listed(names []string) string {
	if more := len(names) - maxListed; more > 0 {
		names = append(slices.Clone(names[:maxListed]), "…")
	}
	return strings.Join(names, ", ")
}

// Traffic returns what waits at each upstream: the requests that it has not answered, and
// the bytes that it has not read.
func (p *Router) Traffic() map[string]observe.Traffic {
	all := make(map[string]observe.Traffic)
	for _, s := range p.running() {
		s.mu.Lock()
		for _, u := range s.upstreams.conns() {
			if a := u.attempt; a != nil && !a.ended {
				t := all[u.up.Name]
				t.Upstream = u.up.Name
				t.InFlight += len(a.peer.Calls(func(c *peer.Call) bool { return c.Method != mcp.MethodListen }))
				t.QueuedBytes += a.peer.Waiting()
				all[u.up.Name] = t
			}
		}
		s.mu.Unlock()
	}
	return all
}
