package frontend

import (
	"errors"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

const (
	// bodyTimeout is how long a client may take to send a message. It holds for
	// bodies that nobody reads, too: net/http waits for one before it answers.
	bodyTimeout = time.Minute

	// largeBodies is how many messages over a piece are read at a time, from all
	// clients together: what they have sent so far is all in memory. The others
	// wait for as long as largeWait. One principal that is slow may have them all. As
	// many again are there for others, ownBodies for each.
	largeBodies = 16
	ownBodies   = 2
	largeWait   = 10 * time.Second
)

// BodySlots are for large messages of clients, in bodies and on WebSockets, that are being
// read.
type bodySlots struct {
	mu    sync.Mutex                 // guards the fields below
	large map[identity.Principal]int // taken
	all   int                        // likewise
	freed chan struct{}              // closed when there is one more, and made anew
}

func newBodySlots() *bodySlots {
	return &bodySlots{large: make(map[identity.Principal]int), freed: make(chan struct{})}
}

// enter waits for a place, which leave gives back, or until gone is closed. It reports
// whether there was one in time.
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

// try takes a place. If there is none it returns what is closed when there may be one.
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

// principalSlots are those that one principal can have.
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
