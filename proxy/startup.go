package proxy

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/mcp"
)

// maxStart is how long upstreams may hold the client's initialize, whatever they
// are waiting for: hosts give up after 10 s.
const maxStart = 8 * time.Second

// startAll starts all upstreams at once, those that become known meanwhile too, and
// waits for each as long as it may hold the client. It returns what those said that
// were in time, which start sees to; nil is nothing. Those that were late before are
// waited for only if no other says anything, and then one is enough.
func (s *session) startAll(ctx context.Context, era mcp.Era, method string, start starter) map[*leg]json.RawMessage {
	ctx, cancel := context.WithTimeout(ctx, maxStart)
	defer cancel()
	u := &startup{s: s, method: method, start: start, begun: make(map[*leg]bool), answers: make(chan started), said: make(map[*leg]json.RawMessage)}
	for {
		v := s.upstreams(era)
		unknown := !v.settled && !s.p.wasLate("", starts)
		u.begin(ctx, v, false)
		if u.open == 0 && !unknown && len(u.said) == 0 {
			unknown = !v.settled
			u.begin(ctx, v, true)
		}
		if u.over() && !unknown {
			if s.upstreams(era) == v {
				return u.said
			}
			continue
		}
		select {
		case a := <-u.answers:
			u.take(a)
		case <-v.replaced:
		case <-ctx.Done():
			if late(ctx) && !v.settled {
				s.p.noteLate("", starts)
			}
			return u.said
		}
	}
}

// A starter starts an upstream and returns what it says of itself; nil for nothing.
type starter func(*leg, context.Context) json.RawMessage

// A startup is the upstreams that startAll starts.
type startup struct {
	s       *session
	method  string // that they answer
	start   starter
	begun   map[*leg]bool // started; true: and waited for
	answers chan started  // to startAll, while it waits; never closed
	open    int           // waited for, and have not answered yet
	tardy   int           // likewise, of those that were late before
	said    map[*leg]json.RawMessage
}

// A started is what an upstream said, nil for nothing.
type started struct {
	leg   *leg
	tardy bool
	said  json.RawMessage
}

// over reports whether nobody has to be waited for.
func (u *startup) over() bool { return u.open == 0 && (u.tardy == 0 || len(u.said) > 0) }

func (u *startup) take(a started) {
	if a.tardy {
		u.tardy--
	} else {
		u.open--
	}
	if a.said != nil {
		u.said[a.leg] = a.said
	}
}

// begin starts those upstreams that were not started yet. Those that were late before
// are waited for only if tardy says so.
func (u *startup) begin(ctx context.Context, v *lineup, tardy bool) {
	for _, l := range v.legs {
		waits, seen := u.begun[l]
		late := l.late(u.method)
		switch {
		case waits || seen && !tardy:
		case late && !tardy:
			u.begun[l] = false
			u.beginAside(l)
		default:
			u.begun[l] = true
			if late {
				u.tardy++
			} else {
				u.open++
			}
			u.s.wg.Go(func() { u.ask(ctx, l, late) })
		}
	}
}

// beginAside starts an upstream that nobody waits for.
func (u *startup) beginAside(l *leg) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	l.openLocked()
	if l.era == mcp.Modern {
		l.asideLocked(u.method, func(ctx context.Context) { u.start(l, ctx) })
	}
}

// ask starts one upstream, within its own startTimeout.
func (u *startup) ask(ctx context.Context, l *leg, tardy bool) {
	within, cancel := context.WithTimeout(ctx, l.startTimeout())
	defer cancel()
	said := u.start(l, within)
	if said == nil && late(within) && l.ctx.Err() == nil {
		l.noteLate(u.method)
		l.log.Info("upstream is still starting; the client goes on without it")
	}
	select {
	case u.answers <- started{l, tardy, said}:
	case <-ctx.Done():
	}
}

// introduced starts an upstream that introduces itself when it does.
func (l *leg) introduced(ctx context.Context) json.RawMessage {
	if l.start(ctx) != nil {
		return nil
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.info.result
}
