package session

import (
	"slices"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// Calls returns the open requests of clients, oldest first, at most that many, and the number of
// the others. Their beginnings are known if Hooks observe calls. It leaves out subscriptions,
// because no client waits for their answers. It says what a request waits for as far as the proxy
// sees; the host knows more.
func (p *Router) Calls(most int) (calls []observe.OpenRequest, leftOut int) {
	var open []*request
	for _, s := range p.running() {
		for _, r := range s.client.Requests(nil) {
			if r.Method != mcp.MethodListen {
				open = append(open, r.Value.(*request))
			}
		}
	}
	slices.SortFunc(open, func(a, b *request) int { return a.arrivedAt().Compare(b.arrivedAt()) })
	if len(open) > most {
		open, leftOut = open[:most], len(open)-most
	}
	for _, r := range open {
		calls = append(calls, r.inFlight())
	}
	return calls, leftOut
}

// maxTool bounds the bytes of a tool's name that are shown, because a client of a sole upstream may
// send any name.
const maxTool = 128

// inFlight describes an open request.
func (r *request) inFlight() observe.OpenRequest {
	s := r.upstreams.s
	seen := observe.OpenRequest{
		Session: s.id(), Client: s.clientOf(r), Principal: s.name, Era: string(r.era), Method: mcp.NameOf(r.Method), Began: r.arrivedAt(),
		Transport: s.transport,
	}
	questions := s.client.Calls(nil)
	if c := r.call(); c != nil {
		seen.Upstream, seen.Tool = c.conn.up.Name, r.tool[:min(len(r.tool), maxTool)]
		seen.WaitsFor, seen.Detail = c.waits(questions)
		return seen
	}
	var names []string
	seen.WaitsFor, names = r.upstreams.wait()
	if seen.Detail = listed(names); len(names) == 1 {
		seen.Upstream, seen.Detail = names[0], ""
	}
	return seen
}

// waits returns what a call waits for. questions are the server requests that the client has
// not answered.
func (c *call) waits(questions []*peer.Call) (observe.Wait, string) {
	u := c.conn
	switch s := u.state(); {
	case !s.Open:
	case !s.dialled:
		return observe.ForLink, ""
	case !s.Ready:
		return observe.ForStart, ""
	case !c.Sent():
		return observe.ForRoom, "not sent: its server does not read"
	}
	for _, q := range questions {
		if q.Value.(*serverRequest).conn != u {
			continue
		}
		may, sure := c.MayWait(q.For)
		switch {
		case sure:
			return observe.ForClient, mcp.NameOf(q.Method)
		case may:
			return observe.ForClient, mcp.NameOf(q.Method) + ", which may be for another call"
		}
	}
	return observe.ForUpstream, ""
}

// wait returns what a request without a call waits for, and the names of the upstreams that
// cause it.
func (set *upstreamSet) wait() (wait observe.Wait, names []string) {
	var starting, asked []string
	for _, u := range set.conns {
		switch s := u.state(); {
		case s.attempt == nil:
		case s.Open && !s.Ready, !s.Open && !s.Heard && set.only() == u: // startup.insist starts it again
			starting = append(starting, u.up.Name)
		case !s.Open:
		case len(s.attempt.peer.Calls(isOwn)) > 0:
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

// isOwn reports whether a call to an upstream is the session's own, and a goroutine waits for it.
func isOwn(pc *peer.Call) bool {
	c := callOf(pc)
	return c != nil && c.request == nil && pc.Method != mcp.MethodListen
}

// maxListed bounds the upstreams that are named in one text.
const maxListed = 8

func listed(names []string) string {
	if more := len(names) - maxListed; more > 0 {
		names = append(slices.Clone(names[:maxListed]), "…")
	}
	return strings.Join(names, ", ")
}

// Traffic returns the load of each upstream: its open requests, the bytes that it has not read, and
// the clients for which it rests.
func (p *Router) Traffic() map[string]observe.Traffic {
	all := make(map[string]observe.Traffic)
	for _, s := range p.running() {
		for _, u := range s.upstreams.conns() {
			t, now := all[u.up.Name], u.state()
			t.Upstream = u.up.Name
			if now.rests {
				t.Resting++
				all[u.up.Name] = t
			}
			if now.Open {
				t.InFlight += len(now.attempt.peer.Calls(func(c *peer.Call) bool { return c.Method != mcp.MethodListen }))
				t.QueuedBytes += now.attempt.peer.Waiting()
				all[u.up.Name] = t
			}
		}
	}
	return all
}
