package frontend

import (
	"errors"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

const (
	// bodyTimeout bounds the time in which a client must send a message. It also applies to unread
	// bodies, because net/http waits for them before it answers.
	bodyTimeout = time.Minute

	// largeBodies bounds how many messages over 64 KiB are read at the same time, because the parts
	// that have arrived stay in memory. Other messages wait for up to largeWait. One slow principal
	// may occupy all these slots. Other principals then have as many more, ownBodies each.
	largeBodies = 16
	ownBodies   = 2
	largeWait   = 10 * time.Second
)

// bodySlots are the slots for large messages that are being read, in bodies and on WebSockets.
type bodySlots struct {
	mu    sync.Mutex                 // guards the fields below
	large map[identity.Principal]int // taken slots
	all   int                        // sum of large
	freed chan struct{}              // closed and replaced when a slot becomes free
}

func newBodySlots() *bodySlots {
	return &bodySlots{large: make(map[identity.Principal]int), freed: make(chan struct{})}
}

// enter waits for a slot, until gone is closed. The caller must leave it. It returns false if there
// was none in time.
func (p *bodySlots) enter(who identity.Principal, gone <-chan struct{}) bool {
	timer := time.NewTimer(largeWait)
	defer timer.Stop()
	for {
		freed := p.try(who)
		if freed == nil {
			return true
		}
		select {
		case <-freed:
		case <-timer.C:
			return false
		case <-gone:
			return false
		}
	}
}

// try takes a slot. If there is none it returns a channel that is closed when there may be one.
func (p *bodySlots) try(who identity.Principal) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.all >= largeBodies && (p.all >= 2*largeBodies || p.large[who] >= ownBodies) {
		return p.freed
	}
	p.large[who]++
	p.all++
	return nil
}

func (p *bodySlots) leave(who identity.Principal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all--
	if p.large[who]--; p.large[who] == 0 {
		delete(p.large, who)
	}
	close(p.freed)
	p.freed = make(chan struct{})
}

// principalSlots are the slots for one principal.
type principalSlots struct {
	all *bodySlots
	who identity.Principal
}

// Enter implements [jsonrpc.Slots].
func (p principalSlots) Enter(gone <-chan struct{}) error {
	if !p.all.enter(p.who, gone) {
		return errNoSlot
	}
	return nil
}

var errNoSlot = errors.New("too many large messages")

// Leave implements [jsonrpc.Slots].
func (p principalSlots) Leave() { p.all.leave(p.who) }
