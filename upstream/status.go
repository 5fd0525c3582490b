package upstream

import (
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A State is what the newest server of a key does.
type State string

// Without a server a key is ready to start one, waits until it may, or waits in a
// crash loop.
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
	Err      error     // what happened then, for programs; nil for nothing more
	Next     time.Time // no start before; zero for any time

	// Of the newest server; zero if there was none.
	PID      int // of a process
	Started  time.Time
	InFlight int      // requests that it has not answered
	Unusable int      // messages from it that were none
	Stderr   []string // the last lines of a process
}

// A reporter adds to a status what there is to say of the newest server. If that is
// still there, it sets the state.
type reporter interface{ addStatus(st *Status) }

// addStatus makes a Status the reporter on a server that is gone.
func (last *Status) addStatus(st *Status) {
	st.PID, st.Started, st.InFlight, st.Unusable, st.Stderr = last.PID, last.Started, last.InFlight, last.Unusable, last.Stderr
}
