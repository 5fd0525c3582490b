package upstream

import (
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A State is what the newest server of a key does.
type State string

// Without a server a key can start one, waits until it may, or waits in a crash loop.
const (
	StateStarting  State = "starting" // it has not answered anything yet
	StateRunning   State = "running"
	StateStopping  State = "stopping"
	StateReady     State = "ready"
	StateWaiting   State = "waiting"
	StateCrashLoop State = "crash loop"
)

// A Status is what the host knows about the servers that one key has of an upstream.
type Status struct {
	Upstream string
	Key      string
	Era      mcp.Era   // of these servers
	Speaks   []mcp.Era // the upstream, as far as is known
	State    State
	Failures int       // ends in a row that count against it
	Cause    string    // of the last of them; "" for none
	Says     string    // the same in words that follow the upstream's name
	Event    string    // its id in errors and the log
	Err      error     // what happened then, for programs; nil for nothing more
	Next     time.Time // no start before; zero for any time

	// Failed orders the last failures of all keys. It is 0 without one, and once a server
	// of the upstream, for whatever key, has answered since: then the upstream is well.
	Failed int

	// Of the newest server, while it is there; else zero.
	PID          int // of a process
	Started      time.Time
	InFlight     int // requests that it has not answered
	Unattributed int // messages from it that could be for any of several clients, and were dropped

	// Of the newest server, also when it has ended.
	Unusable int      // messages from it that were none
	Stderr   []string // the last lines of a process
}

// Lives reports whether there is a server. Without one a Status tells of a failure.
func (st *Status) Lives() bool {
	return st.State == StateStarting || st.State == StateRunning || st.State == StateStopping
}

// A statusReporter adds to a status what there is to say of the newest server. If that is
// still there, it sets the state.
type statusReporter interface{ addStatus(st *Status) }

// addStatus makes a Status the reporter on a server that is gone.
func (last *Status) addStatus(st *Status) {
	st.Unusable, st.Stderr = last.Unusable, last.Stderr
}
