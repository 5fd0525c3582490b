package shared

import (
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// These bound the server requests that wait for calls without a client, and how long they do.
const (
	maxHeld      = 64
	maxHeldBytes = 4 << 20 // unless it is only one
	heldFor      = 2 * time.Second
)

// A heldRequest is a request of the server that waits until it is known who caused it.
type heldRequest struct {
	r     *peer.Request
	of    *member       // the only client with a call when it came
	calls []*memberCall // without a client, that were at the server then and are not answered
}

// holdLocked holds a request of the server that belongs to the only client with a call, or to a call of the proxy's own
// members, which list for the catalog at any time. If such a call is answered first, it has not caused the request.
// holdLocked returns false if the request is not held.
func (s *sharedSession) holdLocked(r *peer.Request) bool {
	only, _ := s.onlyCallerLocked(true)
	if only == nil || s.heldFullLocked(r) {
		return false
	}
	h := &heldRequest{r: r, of: only}
	for _, c := range s.atServer() {
		if c.isOwn() {
			h.calls = append(h.calls, c)
		}
	}
	s.held = append(s.held, h)
	s.timers.After(heldFor, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if slices.Contains(s.held, h) {
			h.of = nil
			s.releaseLocked(h)
		}
	})
	return true
}

// heldFullLocked reports whether there is no room to hold one more request.
func (s *sharedSession) heldFullLocked(r *peer.Request) bool {
	size := len(r.Message.Params)
	for _, h := range s.held {
		size += len(h.r.Message.Params)
	}
	return len(s.held) >= maxHeld || len(s.held) > 0 && size > maxHeldBytes
}

// ownAnswered passes on the held requests that waited only for this call of the proxy. A request that also waits for a
// cancelled call is held for longer, because that call may have caused it.
func (s *sharedSession) ownAnswered(c *memberCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range slices.Clone(s.held) {
		at := slices.Index(h.calls, c)
		if at < 0 {
			continue
		}
		if h.calls = slices.Delete(h.calls, at, at+1); len(h.calls) == 0 {
			s.releaseLocked(h)
		}
	}
}

// releaseLocked passes on a request that was held, if its client still has a call, or refuses it.
func (s *sharedSession) releaseLocked(h *heldRequest) {
	s.held = slices.DeleteFunc(s.held, func(other *heldRequest) bool { return other == h })
	if s.over || !h.r.Open() {
		return // the server has cancelled it, or is gone: run may no longer be waiting for calls of ambiguous
	}
	var to owner
	if h.of != nil && !h.of.gone {
		if to.of = h.of.newest(""); !to.of.IsZero() {
			to.m = h.of
		}
	}
	s.passLocked(h.r, mcp.Read(h.r.Message), to)
}

// refuseHeldLocked refuses the held requests of a client that leaves.
func (s *sharedSession) refuseHeldLocked(m *member) {
	for _, h := range slices.Clone(s.held) {
		if h.of == m {
			s.releaseLocked(h)
		}
	}
}

// isOwn reports whether the call is of a member without a client.
func (c *memberCall) isOwn() bool { return c.member.holder.Who == "" }
