package proxy

import (
	"context"
	"time"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// debounce is how long a list_changed is held back for others to join it. It
// must stay well under the 100 ms that clients are promised.
const debounce = 50 * time.Millisecond

// listChanged notes that an upstream changed a list, and tells the client.
func (l *leg) listChanged(k kind) {
	l.markDirty(k)
	if k == resources {
		l.markDirty(templates)
	}
	l.s.tellChanged(k)
}

func (l *leg) markDirty(k kind) {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	if t := l.tables[k]; t != nil {
		dirty := *t
		dirty.dirty = true
		l.tables[k] = &dirty
	}
}

// tellChanged sends one list_changed for all changes within the debounce.
func (s *session) tellChanged(k kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := false
	for _, c := range s.changed {
		held = held || c
	}
	s.changed[k] = true
	if held || s.phase >= closing {
		return
	}
	s.wg.Go(func() {
		timer := time.NewTimer(debounce)
		defer timer.Stop()
		select {
		case <-timer.C:
			s.flushChanged()
		case <-s.ctx.Done():
		}
	})
}

func (s *session) flushChanged() {
	s.mu.Lock()
	changed := s.changed
	s.changed = [kinds]bool{}
	s.mu.Unlock()
	for k, yes := range changed {
		if yes {
			s.out.wait(jsonrpc.NewNotification(kindInfo[k].changed, nil))
		}
	}
}

// returned is called when an upstream has answered initialize. If the client has
// seen lists without it, or with what it offered before, and they differ now, it
// is told.
func (s *session) returned(l *leg) {
	s.mu.Lock()
	shown := s.shown
	before := l.shown
	s.mu.Unlock()
	for k := range kinds {
		if !shown[k] {
			continue
		}
		s.wg.Go(func() {
			ctx, cancel := context.WithTimeout(s.ctx, s.p.listTimeout())
			defer cancel()
			now, f := l.list(ctx, k)
			if f == nil && now.digest != before[k] {
				s.tellChanged(min(k, resources)) // there is one notification for both
			}
		})
	}
}
