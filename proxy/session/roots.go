package session

import (
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

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
