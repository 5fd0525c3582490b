package session

import (
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// rootsChanges limits how often upstreams are notified of a change of the client's roots: at once,
// and then once in rootsPause.
type rootsChanges struct {
	mu      sync.Mutex // guards the fields below; upstreamConn.mu may be taken with it held
	resting bool       // the upstreams were notified less than rootsPause ago
	held    *jsonrpc.Message
}

// rootsPause is how long changes are held back, to combine them.
const rootsPause = 100 * time.Millisecond

func (s *session) rootsChanged(m *jsonrpc.Message) {
	r := &s.roots
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.resting {
		r.held = m
		return
	}
	r.resting = true
	s.tellRoots(m)
	s.wg.Go(s.restRoots)
}

func (s *session) tellRoots(m *jsonrpc.Message) {
	for _, u := range s.upstreams.of(mcp.Legacy).conns {
		if u.alive() {
			u.tell(m)
		}
	}
}

// restRoots sends notifications that were held back, until there are none.
func (s *session) restRoots() {
	for {
		select {
		case <-time.After(rootsPause):
		case <-s.ctx.Done():
			return
		}
		if !s.roots.flush(s) {
			return
		}
	}
}

// flush sends the notification that was held back, and reports whether there was one.
func (r *rootsChanges) flush(s *session) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.held
	r.held, r.resting = nil, m != nil
	if m != nil {
		s.tellRoots(m)
	}
	return m != nil
}
