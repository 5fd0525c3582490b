package upstream

import (
	"cmp"
	"slices"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// A State is what a claim's newest process does.
type State string

// Without a process a claim is ready to start one, waits until it may, or waits
// in a crash loop.
const (
	StateStarting  State = "starting" // it has not answered anything yet
	StateRunning   State = "running"
	StateStopping  State = "stopping"
	StateReady     State = "ready"
	StateWaiting   State = "waiting"
	StateCrashLoop State = "crash loop"
)

// A Status is what the host knows about one claim on an upstream.
type Status struct {
	Upstream string
	Key      string
	Era      mcp.Era   // of the claim
	Speaks   []mcp.Era // the upstream, as far as is known
	State    State
	Failures int       // ends in a row that count against it
	Next     time.Time // no start before; zero for any time

	// Of the newest process; zero if there was none.
	PID      int
	Started  time.Time
	InFlight int      // requests that it has not answered
	Unusable int      // lines on its stdout that were no message
	Stderr   []string // its last lines
}

// Status returns the claims that are in use or remembered, by upstream, key and
// era.
func (h *Host) Status() []Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := make([]Status, 0, len(h.claims))
	for _, cl := range h.claims {
		st := cl.status()
		if e := h.eras[cl.id.upstream]; e != nil {
			st.Speaks = e.known()
		}
		all = append(all, st)
	}
	slices.SortFunc(all, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.Upstream, b.Upstream), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Era, b.Era))
	})
	return all
}

// status returns the status of cl, for which Host.mu is held.
func (cl *claim) status() Status {
	st := cl.last
	st.Upstream, st.Key, st.Era = cl.id.upstream, cl.id.key, cl.id.era
	st.Failures, st.Next = cl.inARow(), cl.next
	switch {
	case cl.inARow() >= crashLoop:
		st.State = StateCrashLoop
	case time.Now().Before(cl.next):
		st.State = StateWaiting
	default:
		st.State = StateReady
	}
	if s := cl.current; s != nil {
		s.addStatus(&st)
	}
	return st
}

// addStatus adds what is to say of a stream and its server.
func (s *stream) addStatus(st *Status) {
	inFlight, _, answered, _ := s.flight.state()
	st.InFlight, st.Unusable, st.Started = inFlight, int(s.unusable.Load()), s.began
	waits := st.State
	if st.State = StateStarting; answered {
		st.State = StateRunning
	}
	if p, ok := s.server.(*process.Server); ok {
		st.PID, st.Started, st.Stderr = p.PID(), p.Started(), p.Stderr()
	}
	switch stopping, gone := s.server.State(); {
	case gone:
		st.State = waits
	case stopping:
		st.State = StateStopping
	}
}

func closed(event <-chan struct{}) bool {
	select {
	case <-event:
		return true
	default:
		return false
	}
}
