package shared

import (
	"maps"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

// modernIdle is how long a modern server runs without a stream, unless its upstream says otherwise. Ending it loses
// nothing, since it has no sessions. Other servers stay.
const modernIdle = time.Minute

// noteUse notes when a call was over, for upstreams that do so.
func (s *sharedSession) noteUse(*peer.Call, *jsonrpc.Message, *peer.Lost) {
	s.used.Store(time.Now().UnixNano())
}

// stopIdleLocked stops the idle timer, if there is one.
func (s *sharedSession) stopIdleLocked() {
	s.idle.Stop()
	s.idle = nil
}

// idleLocked starts the idle timer of a server without members. Streams of clients that are idle end before, so that
// the time since the last use counts.
func (s *sharedSession) idleLocked() {
	left := modernIdle
	switch calls, _ := s.server.Open(); {
	case s.over || s.welcome == nil || len(s.members) > 0 || s.up.Idle == 0 && s.modern == nil:
		return
	case s.up.Idle == 0:
	case calls > 0: // those that members have left
		left = s.up.Idle
	default:
		left = s.up.Idle - time.Since(time.Unix(0, s.used.Load()))
	}
	s.stopIdleLocked()
	s.idle = s.timers.After(left, s.idled)
}

func (s *sharedSession) idled() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.members) == 0 {
		s.retireLocked(jsonrpc.CauseIdle)
	}
}

// endIdle ends a modern server without members before its idle time is over.
func (s *sharedSession) endIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.modern != nil && s.idle != nil && len(s.members) == 0 {
		s.retireLocked(jsonrpc.CauseIdle)
	}
}

// retireLocked ends the session. The next client gets a new one.
func (s *sharedSession) retireLocked(cause jsonrpc.Cause) {
	s.retired = true
	s.stopLocked(cause)
}

// leftLocked remembers for peer.FadeFor when m, which has left, last abandoned a call.
func (s *sharedSession) leftLocked(m *member) {
	old := func(_ string, at time.Time) bool { return time.Since(at) >= peer.FadeFor }
	maps.DeleteFunc(s.left, old)
	if who := m.holder.Who; !old(who, m.gaveUp) && m.gaveUp.After(s.left[who]) {
		if s.left == nil {
			s.left = make(map[string]time.Time)
		}
		s.left[who] = m.gaveUp
	}
}
