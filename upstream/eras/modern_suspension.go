package eras

import (
	"crypto/rand"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

const (
	maxSuspended = 256 // of one key on one upstream; beyond, see minSuspended, or the server's request is refused

	// minSuspended is how long a suspended call keeps what it holds in any case: far longer than
	// a program takes to answer, and long enough for a user to read a form. After that it stays
	// suspended, up to SuspendFor, until another call needs what it holds; then the oldest
	// ends as if it had expired. A client that closed a dialog never returns, and cannot be
	// told from one whose user still thinks.
	minSuspended = 30 * time.Second
)

// A suspension is a call that waits for its client to come back with input. The requestState of its newest round
// names it: 128 random bits that only clients of its key can use. Its methods are called with account.mu held.
type suspension struct {
	a      *account
	state  string      // the newest
	call   *modernCall // nil if the call starts again when its client returns
	round  byte        // of the newest state
	digest [32]byte
	since  time.Time     // when the state was issued
	expiry time.Time     // of the state
	timer  *timers.Timer // runs until expiry
}

// newSuspensionLocked returns a suspension; nil if there are too many.
func (a *account) newSuspensionLocked(c *modernCall, digest [32]byte) *suspension {
	if len(a.suspensions) >= maxSuspended && !a.giveUpOldestLocked(func(*suspension) bool { return true }) {
		return nil
	}
	p := &suspension{a: a, state: rand.Text(), call: c, digest: digest}
	a.suspensions[p.state] = p
	a.hold()
	return p
}

// isAtServer reports whether the server still works on the call.
func (p *suspension) isAtServer() bool { return p.call != nil && p.call.session != nil }

// newState begins a round and returns its requestState.
func (p *suspension) newState() string {
	delete(p.a.suspensions, p.state)
	p.state = rand.Text()
	p.a.suspensions[p.state] = p
	p.round++
	p.since = time.Now()
	p.expiry = p.since.Add(p.a.life.suspendFor)
	p.timer.Stop()
	p.timer = p.a.after(p.a.life.suspendFor, p.expire)
	return p.state
}

// forget ends a suspension. It may be called repeatedly.
func (p *suspension) forget() {
	if p.a.suspensions[p.state] != p {
		return
	}
	p.timer.Stop()
	delete(p.a.suspensions, p.state)
	p.a.release()
}

// expire ends a call whose client has not come back in time.
func (p *suspension) expire() {
	switch {
	case p.a.suspensions[p.state] != p, time.Now().Before(p.expiry): // another round has begun
		return
	case p.call != nil && p.call.state != suspended:
		return
	}
	p.end(errNoInput)
}

// end ends a suspension and its call. The server gets why as the answer to its requests.
func (p *suspension) end(why *jsonrpc.Error) {
	p.forget()
	if c := p.call; c != nil {
		c.drop(nil, why)
	}
}

// giveUp ends a suspended call before it expires.
func (p *suspension) giveUp() {
	p.a.life.log.Debug("suspended call ended early: others need its session", "upstream", p.a.id.upstream)
	p.end(errNoInput)
}

// giveUpOldestLocked ends the oldest suspended call for which some returns true, if it is old enough. It reports
// whether there was one.
func (a *account) giveUpOldestLocked(some func(*suspension) bool) bool {
	var oldest *suspension
	for _, p := range a.suspensions {
		inUse := p.call != nil && p.call.state != suspended
		if !inUse && time.Since(p.since) >= minSuspended && (oldest == nil || p.since.Before(oldest.since)) && some(p) {
			oldest = p
		}
	}
	if oldest != nil {
		oldest.giveUp()
	}
	return oldest != nil
}

// suspendedLocked returns how many suspended calls the server has not answered.
func (a *account) suspendedLocked() (n int) {
	for _, p := range a.suspensions {
		if p.isAtServer() && p.call.state == suspended {
			n++
		}
	}
	return n
}
