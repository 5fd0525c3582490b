package upstream

import (
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// A State is the state of a key's newest server.
type State string

// The states. In the last three there is no server.
const (
	StateStarting  State = "starting" // it has not answered anything yet
	StateRunning   State = "running"
	StateStopping  State = "stopping"
	StateReady     State = "ready"      // the next request starts a server
	StateWaiting   State = "waiting"    // in back-off
	StateCrashLoop State = "crash loop" // the same, after many failures
)

// A Status describes the servers of one key and upstream.
type Status struct {
	Upstream string
	Key      string
	Era      mcp.Era   // of these servers
	Speaks   []mcp.Era // eras that the upstream is known to speak
	State    State
	Failures int       // in a row
	Cause    string    // of the last failure; "" for none
	Says     string    // the same in words that follow the upstream's name
	Event    string    // its id in errors and the log
	Err      error     // its error, for programs; nil for none
	Next     time.Time // of the earliest start; zero for any time

	// Failed orders the last failures of all keys. It is 0 if there was none, or if a
	// server of the upstream has answered since, for any key.
	Failed int

	// Of the newest server while it lives; otherwise zero.
	PID          int // of a process
	Started      time.Time
	InFlight     int // calls that it has not answered
	Unattributed int // messages from it that were dropped, since they could be for any of several clients

	// Of the newest server, also when it has ended.
	Unusable int      // invalid messages from it
	Stderr   []string // the last lines of a process
}

// Lives reports whether there is a server. If not, the Status is about a failure.
func (st *Status) Lives() bool {
	return st.State == StateStarting || st.State == StateRunning || st.State == StateStopping
}

// addStatus adds the server's part of a status.
func (s *stream) addStatus(st *Status) {
	inFlight, start := s.inFlight.state()
	st.InFlight, st.Unusable, st.Started = inFlight, int(s.unusable.Load()), s.began
	if p, ok := s.server.(*process.Server); ok {
		st.PID, st.Started, st.Stderr = p.PID(), p.Started(), p.Stderr()
	}
	switch {
	case s.server.Gone():
	case s.ends.Load():
		st.State = StateStopping
	case start.answered:
		st.State = StateRunning
	default:
		st.State = StateStarting
	}
}
