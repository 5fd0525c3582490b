package session

import (
	"sync"

	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
)

// A request that was cancelled or timed out, or whose client has left, is over for the client, but
// its server may still work on it. So it counts for its principal until the server answers it or
// ends, for a limited time: most servers never answer it.

// abandoned are the requests of an upstream connection that still count for a principal, by id.
type abandoned struct {
	mu    sync.Mutex // guards the fields below
	uses  map[int64]*policy.Use
	sweep int // at this many entries, those that no longer count are removed
}

func (a *abandoned) put(id int64, use *policy.Use) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.uses) >= max(a.sweep, 64) {
		for id, use := range a.uses {
			if use.Over() {
				delete(a.uses, id)
			}
		}
		a.sweep = 2 * len(a.uses)
	}
	if a.uses == nil {
		a.uses = make(map[int64]*policy.Use)
	}
	a.uses[id] = use
}

// answered ends the count of a call.
func (a *abandoned) answered(id int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.uses[id].End()
	delete(a.uses, id)
}

// end ends all counts.
func (a *abandoned) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, use := range a.uses {
		use.End()
	}
	a.uses = nil
}
