package eras

import (
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

const (
	maxSessions = 32       // of one key on one upstream; beyond that, one is ended to make room, see spareLocked
	maxSpelled  = 64       // remembered spellings of capabilities
	maxKept     = 64 << 20 // bytes of answers to suspended calls of one key on one upstream; further answers become errors

	// returnFor is how long the sessions and suspended calls of one connection wait for it to
	// return when its stream ended on this side.
	returnFor = 30 * time.Second
)

// A lifetime is the part of a Bridge that its accounts use: its settings and its end.
type lifetime struct {
	// Static once there is an account.
	open       func(headers map[string][]string, upstream, key string) jsonrpc.Conn // opens a legacy stream
	relates    func(upstream string) bool                                           // see Bridge.Relates
	idle       func(upstream string) time.Duration                                  // see Bridge.Idle
	suspendFor time.Duration
	log        *slog.Logger

	asking sync.Map       // upstreams whose requests do not name their call
	timers timers.Set     // of all accounts
	wg     sync.WaitGroup // sessions

	mu       sync.Mutex             // guards the fields below and account.uses
	accounts map[accountID]*account // those with uses
	stopped  bool
}

type accountID struct{ upstream, key string }

// An account is what one key has on one upstream: its sessions, the calls in them, and the streams of its clients.
// It exists as long as one of these does.
type account struct {
	// Static after construction.
	life    *lifetime
	id      accountID
	holder  mcp.Holder          // of the key
	headers map[string][]string // that say who the user of the key is; nil for none

	uses int // guarded by lifetime.mu

	mu          sync.Mutex // guards the fields below and everything in them
	streams     map[*modernClient]struct{}
	groups      map[string]*group           // by their capabilities
	spelled     map[string]*group           // by capabilities as spelled in requests
	sessions    [maxSessions]*legacySession // by number
	suspensions map[string]*suspension      // by requestState
	answers     storedAnswers
	changed     map[string]bool // methods of list_changed that tellChangesLocked will send; nil: it is not due
	kept        int             // bytes of answers to suspended calls

	left time.Time     // when the last stream ended: see leftLocked
	gone *timers.Timer // runs since then
}

func newAccount(life *lifetime, id accountID, headers map[string][]string) *account {
	return &account{life: life, id: id, holder: mcp.HolderOf(id.key), headers: headers,
		streams: make(map[*modernClient]struct{}), groups: make(map[string]*group),
		spelled: make(map[string]*group), suspensions: make(map[string]*suspension)}
}

// hold adds a use of a.
func (a *account) hold() {
	a.life.mu.Lock()
	defer a.life.mu.Unlock()
	a.uses++
}

// release ends a use. An account without uses is forgotten.
func (a *account) release() {
	a.life.mu.Lock()
	defer a.life.mu.Unlock()
	if a.uses--; a.uses == 0 {
		delete(a.life.accounts, a.id)
	}
}

// locked runs fn with a's lock held.
func (a *account) locked(fn func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fn()
}

// after runs fn after d with a's lock held, unless the timer is stopped or the Bridge stops first. If Stop comes
// too late fn still runs, so fn must check whether it is still wanted.
func (a *account) after(d time.Duration, fn func()) *timers.Timer {
	return a.life.timers.After(d, func() { a.locked(fn) })
}

// stopLocked ends everything in a but the streams.
func (a *account) stopLocked() {
	for s := range a.streams {
		for l := range s.listens {
			l.finish()
		}
	}
	for _, l := range a.sessions {
		if l != nil {
			l.end(&jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Delivered: true})
		}
	}
	for _, p := range a.suspensions { // their sessions have ended
		p.forget()
	}
}

// endAllLocked ends the suspended calls and then, gracefully, the sessions.
func (a *account) endAllLocked() {
	for _, p := range a.suspensions {
		p.end(peer.ErrClientGone)
	}
	for _, l := range a.sessions {
		if l != nil {
			l.end(nil)
		}
	}
}

// changedLocked ends everything in a, because its upstream was removed or replaced.
func (a *account) changedLocked() {
	a.endWaitingLocked(jsonrpc.CauseChanged) // or the end of a session opens another one for them
	for _, l := range a.sessions {
		if l != nil {
			l.end(&jsonrpc.ClosedError{Cause: jsonrpc.CauseChanged, Delivered: true})
		}
	}
	for s := range a.streams {
		s.leaveLocked()
		s.end(&jsonrpc.ClosedError{Cause: jsonrpc.CauseChanged, Delivered: true})
	}
}

// endWaitingLocked ends the calls that wait for a session, with one event.
func (a *account) endWaitingLocked(cause jsonrpc.Cause) {
	var waiting []*modernCall
	for _, g := range a.groups {
		waiting = append(waiting, g.waiting...)
		g.waiting = nil
	}
	if len(waiting) == 0 {
		return
	}
	end := &jsonrpc.ClosedError{Cause: cause, Event: jsonrpc.NewEvent()}
	a.life.log.Debug("calls that waited for a session ended", "upstream", a.id.upstream, "cause", cause.String(), "event", end.Event, "calls", len(waiting))
	for _, c := range waiting {
		c.settle(jsonrpc.Failure(end.Wire(jsonrpc.CodeInternalError, a.id.upstream, jsonrpc.NotSent)))
	}
}

// noteChangeLocked has the streams told soon that the server has changed a list. The proxy wants to know that also if
// no client listens, because it keeps the lists for other clients.
func (a *account) noteChangeLocked(method string) {
	if a.changed == nil {
		a.changed = make(map[string]bool)
		a.after(noticeFor, a.tellChangesLocked)
	}
	a.changed[method] = true
}

// tellChangesLocked sends each change to the streams without a listen that tells of it.
func (a *account) tellChangesLocked() {
	for s := range a.streams {
		for _, c := range changes {
			if a.changed[c.method] && !s.listensTo(c.method) {
				s.peer.Send(jsonrpc.NewNotification(c.method, nil))
			}
		}
	}
	a.changed = nil
}

// leftLocked handles the end of one of the account's streams. With the last stream of one connection everything
// ends that it had, also if the link was lost. What a principal has stays until it returns, or until Forget.
func (a *account) leftLocked(end error) {
	switch {
	case len(a.streams) > 0 || a.holder.Principal:
		return
	case !mayReturn(end):
		a.endAllLocked()
		return
	}
	a.left = time.Now()
	a.gone.Stop()
	a.gone = a.after(returnFor, func() {
		if len(a.streams) == 0 && time.Since(a.left) >= returnFor {
			a.endAllLocked()
		}
	})
}

// mayReturn reports whether a client may return under the same key after its stream has ended: it did not close
// the stream itself.
func mayReturn(end error) bool {
	closed, ok := errors.AsType[*jsonrpc.ClosedError](end)
	return ok && (closed.Cause.Kind == jsonrpc.KindClientSlow || closed.Cause.Kind == jsonrpc.KindChanged || errors.Is(closed, mcp.ErrOtherEra))
}

// groupLocked returns the group for capabilities as a request spells them.
func (a *account) groupLocked(capabilities json.RawMessage) *group {
	if g := a.spelled[string(capabilities)]; g != nil {
		return g
	}
	text := canonical(withoutTasks(capabilities))
	g := a.groups[string(text)]
	if g == nil {
		g = &group{a: a, text: text, can: abilitiesOf(text), listens: make(map[*modernListen]struct{})}
		a.groups[string(text)] = g
	}
	if len(a.spelled) >= maxSpelled {
		clear(a.spelled)
	}
	a.spelled[string(capabilities)] = g
	return g
}

// numberLocked returns the number for a new session; ok is false if there is no room.
func (a *account) numberLocked() (number int, ok bool) {
	if number = slices.Index(a.sessions[:], nil); number >= 0 {
		return number, true
	}
	spare := a.spareLocked()
	if spare == nil {
		return 0, false
	}
	spare.endSuspended()
	spare.end(nil)
	return spare.number, a.sessions[spare.number] == nil
}

// spareLocked returns a session to end in favour of another: the longest idle one, or one that has been suspended
// for long enough; nil if there is none.
func (a *account) spareLocked() *legacySession {
	if idle := a.longestIdleLocked(); idle != nil {
		return idle
	}
	var spare *legacySession
	var since time.Time
	for _, g := range a.groups {
		l, at := g.longestSuspended()
		if l != nil && time.Since(at) >= minSuspended && l.onlyWorks() && (spare == nil || at.Before(since)) {
			spare, since = l, at
		}
	}
	return spare
}

// longestIdleLocked returns the session that has been idle longest; nil if all are in use.
func (a *account) longestIdleLocked() (idle *legacySession) {
	for _, l := range a.sessions {
		if l != nil && !l.busy() && (idle == nil || l.used.Before(idle.used)) {
			idle = l
		}
	}
	return idle
}

// refusal returns the error for a request when no session can be opened.
func (a *account) refusal() *jsonrpc.Message {
	if a.life.isStopped() {
		return jsonrpc.Failure(jsonrpc.ConnectionClosed(jsonrpc.CodeInternalError, a.id.upstream, jsonrpc.CauseHostStopped, jsonrpc.NotSent))
	}
	return jsonrpc.Failure(jsonrpc.Overloaded(a.id.upstream))
}

// begin counts a session in, unless the Bridge has stopped.
func (b *lifetime) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return false
	}
	b.wg.Add(1)
	return true
}

func (b *lifetime) isStopped() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stopped
}
