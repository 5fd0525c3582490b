package session

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// maxStart is how long upstreams may hold the client's initialize, whatever they
// are waiting for: hosts give up after 10 s.
const maxStart = 8 * time.Second

// startTimeout is how long this upstream may hold the client's initialize.
func (l *leg) startTimeout() time.Duration {
	return min(orDefault(l.up.StartTimeout, 30*time.Second), maxStart)
}

// slow is the error of what does not wait for the start any longer.
func (l *leg) slow() *jsonrpc.Error {
	return l.lost(&jsonrpc.ClosedError{Cause: "start timeout"}, jsonrpc.NotSent)
}

// startAll starts all upstreams at once, those that become known meanwhile too, and
// waits for each as long as it may hold the client. It returns what those said that
// were in time. Those that were late before are waited for only if no other says
// anything, and then one is enough. What only a sole upstream could have said, and why
// it cannot, is the failure.
func (s *session) startAll(ctx context.Context, era mcp.Era, method string, start starter) (map[*leg]json.RawMessage, *failure) {
	ctx, cancel := context.WithTimeout(ctx, maxStart)
	defer cancel()
	u := &startup{s: s, method: method, start: start, begun: make(map[*leg]bool), answers: make(chan started), said: make(map[*leg]json.RawMessage), failed: make(map[*leg]*failure)}
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
				return u.said, u.failed[v.only()]
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
			return u.said, u.failed[v.only()]
		}
	}
}

// A starter starts an upstream and returns what it says of itself, nil for nothing,
// and why it did not start, nil if it may still.
type starter func(*leg, context.Context) (json.RawMessage, *failure)

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
	failed  map[*leg]*failure
}

// A started is what an upstream said, nil for nothing, and why.
type started struct {
	leg    *leg
	tardy  bool
	said   json.RawMessage
	failed *failure
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
	if a.failed != nil {
		u.failed[a.leg] = a.failed
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
		l.asideLocked(u.method, func(ctx context.Context) { _, _ = u.start(l, ctx) })
	}
}

// ask starts one upstream, within its own startTimeout.
func (u *startup) ask(ctx context.Context, l *leg, tardy bool) {
	within, cancel := context.WithTimeout(ctx, l.startTimeout())
	defer cancel()
	said, failed := u.insist(within, l)
	if said == nil && failed == nil && late(within) && l.ctx.Err() == nil {
		l.noteLate(u.method)
		l.log.Info("upstream is still starting; the client goes on without it")
	}
	select {
	case u.answers <- started{l, tardy, said, failed}:
	case <-ctx.Done():
	}
}

// insist starts one upstream, a sole one again if that helps: nobody else can answer
// for it.
func (u *startup) insist(ctx context.Context, l *leg) (json.RawMessage, *failure) {
	var t trials
	for {
		said, f := u.start(l, ctx)
		if f == nil || ctx.Err() != nil || u.s.upstreams(l.era).only() != l || !l.dialled() {
			return said, nil
		}
		pause, again := t.next(f.wire)
		if deadline, _ := ctx.Deadline(); !again || time.Until(deadline) <= pause {
			return nil, f
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, f
		}
	}
}

// dialled reports whether the last attempt had a stream: its host is there.
func (l *leg) dialled() bool {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.attempt != nil && l.attempt.conn != nil
}

// trials are the starts of a sole upstream that failed within one wait.
type trials struct {
	failed int
	event  string // of the last one
}

const (
	maxTrials = 2

	// lookAgain is how often an upstream is looked after that waits before its next
	// start.
	lookAgain = 250 * time.Millisecond
)

// next reports whether another start may help after one that ended with the error, and
// when. The same event a second time is no start, but the wait before one.
func (t *trials) next(wire json.RawMessage) (pause time.Duration, again bool) {
	data, _ := jsonrpc.Member(wire, "data")
	retryable, _ := jsonrpc.Member(data, "retryable")
	raw, _ := jsonrpc.Member(data, "event")
	event, _ := jsonrpc.Unquote(raw)
	if event != "" && event == t.event {
		return lookAgain, true
	}
	t.event = event
	t.failed++
	return 0, string(retryable) == "true" && t.failed < maxTrials
}

// introduced starts an upstream that introduces itself when it does.
func (l *leg) introduced(ctx context.Context) (json.RawMessage, *failure) {
	l.s.mu.Lock()
	a := l.attempt // which initialize began, and may have failed already
	if a == nil || a.counted {
		a = l.openLocked()
	}
	a.counted = true
	l.s.mu.Unlock()
	if err := l.await(ctx, a); err != nil {
		return nil, ownFailure(err)
	}
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.info.result, nil
}
