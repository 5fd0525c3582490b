package eras

import (
	"crypto/rand"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

const (
	collectFor      = 25 * time.Millisecond  // what a server asks together is asked together
	startCollectFor = 250 * time.Millisecond // a call that ends within this time was not what a request of the start is about
	maxSuspended    = 256                    // of one key on one upstream; beyond, see minSuspended, or the server is refused
	maxRounds       = 8                      // of one call; beyond, the server is refused
)

// A suspension is where a call waits whose client was told to come back with input. The
// requestState of each round names it: 128 random bits, that only clients of its key
// can use. Its methods are called with account.mu held.
type suspension struct {
	a      *account
	state  string      // the newest
	call   *modernCall // nil if the call begins anew when its client comes back
	round  byte        // that the newest state is of
	digest [32]byte
	since  time.Time     // that state was given
	expiry time.Time     // of it
	timer  *timers.Timer // until then
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

// isAtServer reports whether the server is at the call.
func (p *suspension) isAtServer() bool { return p.call != nil && p.call.session != nil }

// newState begins a round and returns its requestState.
func (p *suspension) newState() string {
	delete(p.a.suspensions, p.state)
	p.state = rand.Text()
	p.a.suspensions[p.state] = p
	p.round++
	p.since = time.Now()
	p.expiry = p.since.Add(p.a.b.suspendFor())
	p.timer.Stop()
	p.timer = p.a.after(p.a.b.suspendFor(), p.expire)
	return p.state
}

// forget ends a suspension, if that was not done before.
func (p *suspension) forget() {
	if p.a.suspensions[p.state] != p {
		return
	}
	p.timer.Stop()
	delete(p.a.suspensions, p.state)
	p.a.release()
}

// expire ends a call whose client does not come back.
func (p *suspension) expire() {
	switch {
	case p.a.suspensions[p.state] != p, time.Now().Before(p.expiry): // another round has begun
		return
	case p.call != nil && p.call.state != suspended:
		return
	}
	p.end(errNoInput)
}

// end ends a suspension and the call in it, which nobody comes back to. The server
// hears why as the answer to what it asked.
func (p *suspension) end(why *jsonrpc.Error) {
	p.forget()
	if c := p.call; c != nil {
		c.drop(nil, why)
	}
}

// giveUp ends the call of a suspension before its time.
func (p *suspension) giveUp() {
	p.a.b.logger().Debug("suspended call ended early: others need its session", "upstream", p.a.id.upstream)
	p.end(errNoInput)
}

// gather waits for what else is asked before the client hears of it.
func (c *modernCall) gather(d time.Duration) {
	if c.state == forwarded && c.collect == nil {
		c.collect = c.group.a.b.timers.After(d, c.suspend)
	}
}

// suspend answers the client with what the server has asked. It takes the lock.
func (c *modernCall) suspend() {
	digest := c.digestNow()
	a := c.group.a
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.state != forwarded || c.r == nil {
		return
	}
	c.collect = nil
	if len(c.requests) == 0 {
		return // they were taken back
	}
	if c.suspension == nil {
		c.suspension = a.newSuspensionLocked(c, digest)
	}
	if c.suspension == nil || c.suspension.round >= maxRounds {
		c.refuse(errTooManyAsks)
		return
	}
	requests := make([]jsonrpc.Value, 0, len(c.requests))
	for _, q := range c.requests {
		requests = append(requests, jsonrpc.Value{Key: q.key, Text: InputRequest(q.Method, q.Message.Params)})
	}
	c.state = suspended
	c.answer(&jsonrpc.Message{Result: InputRequired(jsonrpc.Set(nil, requests...), c.suspension.newState(), c.serverInfo)})
	c.group.makeRoom()
}
