package shared

import (
	"encoding/json"
	"maps"
	"strconv"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
)

const (
	// modernIdle is how long a modern server runs without a stream, unless its upstream says otherwise. Ending it
	// loses nothing but tasks, since it has no sessions. Other servers stay.
	modernIdle = time.Minute

	// maxTaskTime bounds how long a modern server runs without a stream because it has given a task. A client may
	// come back for a task until its ttlMs is over.
	maxTaskTime = time.Hour
)

// keepForTaskLocked keeps a modern server for the time in which a client may ask for a task that it was given.
func (s *sharedSession) keepForTaskLocked(task json.RawMessage) {
	if end := time.Now().Add(taskTime(task)); end.After(s.until) {
		s.until = end
	}
}

// taskTime returns the ttlMs of a task, maxTaskTime if that is unlimited or longer.
func taskTime(task json.RawMessage) time.Duration {
	raw, _ := jsonrpc.Member(task, "ttlMs")
	ms, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || ms > float64(maxTaskTime/time.Millisecond) {
		return maxTaskTime
	}
	return time.Duration(max(ms, 0)) * time.Millisecond
}

// noteUse records that a call has ended just now. It is called only if the upstream has an Idle.
func (s *sharedSession) noteUse(*peer.Call, *jsonrpc.Message, *peer.Lost) {
	s.used.Store(time.Now().UnixNano())
}

// stopIdleLocked stops the idle timer, if there is one.
func (s *sharedSession) stopIdleLocked() {
	s.idle.Stop()
	s.idle = nil
}

// idleLocked starts the idle timer of a server without members. The time counts from the last use, because the streams
// of idle clients end earlier than that.
func (s *sharedSession) idleLocked() {
	left := modernIdle
	switch calls, _ := s.server.Open(); {
	case s.over || s.welcome == nil || len(s.members) > 0 || s.up.Idle == 0 && s.modern == nil:
		return
	case s.up.Idle == 0:
		left = max(left, time.Until(s.until))
	case calls > 0: // those that members have left
		left = s.up.Idle
	default:
		left = min(s.up.Idle-time.Since(time.Unix(0, s.used.Load())), s.up.Idle) // the clock may have been set back
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

// rests reports whether the session ends because it was idle for the Idle of its upstream. Its server ends soon, since
// nothing is left to be written to it. A server that was replaced may not read, and may take long to end.
func (s *sharedSession) rests() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up.Idle > 0 && s.cause == jsonrpc.CauseIdle
}

// retire ends the session. The next client gets a new one.
func (s *sharedSession) retire(cause jsonrpc.Cause) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.retireLocked(cause)
}

// retireLocked is retire with the lock held.
func (s *sharedSession) retireLocked(cause jsonrpc.Cause) {
	s.retired = true
	s.stopLocked(cause)
}

// leftLocked remembers when m, which has left, last abandoned a call. It forgets that after peer.FadeFor.
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
