package session

import (
	"context"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// debounce is how long a list_changed is held back for others to join it. It
// must stay well under the 100 ms that clients are promised.
const debounce = 50 * time.Millisecond

// listChanged notes that an upstream changed a list, and tells the client.
func (u *upstreamConn) listChanged(k catalog.Kind) {
	u.s.mu.Lock()
	u.changedLocked(k)
	u.s.mu.Unlock()
	u.s.tellChanged(k)
}

// changedLocked makes what is known of a list out of date.
func (u *upstreamConn) changedLocked(k catalog.Kind) {
	u.version[k]++
	if k == catalog.Resources { // there is one notification for both
		u.version[catalog.Templates]++
	}
}

// tellChanged sends one list_changed for all changes within the debounce.
func (s *session) tellChanged(k catalog.Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellChangedLocked(k)
}

func (s *session) tellChangedLocked(k catalog.Kind) {
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
	s.changed = [catalog.Kinds]bool{}
	s.mu.Unlock()
	for k, yes := range changed {
		if yes {
			s.out.wait(jsonrpc.NewNotification(catalog.Kind(k).Changed(), nil))
		}
	}
}

// returned runs when an upstream has answered initialize. If the client has seen
// lists without it, or with what it offered before, and they differ now, it is
// told, unless it was before and had not looked yet, which announced says. An
// upstream that ends meanwhile is not started for that.
func (u *upstreamConn) returned(a *attempt, announced [catalog.Kinds]int) {
	for k := range catalog.Kinds {
		u.s.mu.Lock()
		matters := u.s.shown[k] && u.s.hello.listChanged[k] && announced[k] == 0
		ended := a.ended || u.closed
		u.s.mu.Unlock()
		if ended {
			return
		}
		if matters {
			ctx, cancel := context.WithTimeout(u.s.ctx, u.s.p.listTimeout())
			u.catchUp(ctx, k, asker{view: &u.s.own})
			cancel()
		}
	}
}
