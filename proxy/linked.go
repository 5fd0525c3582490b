package proxy

import (
	"sync"
	"time"
)

// linkedProxies are the proxies elsewhere that have links to a host, and those that
// had one not long ago. What the host keeps for a proxy outlives its last link for a
// while: the proxy may dial again.
type linkedProxies struct {
	keptFor time.Duration
	forget  func(proxy string, last bool) // ends what is kept for a proxy; last: there is no other

	mu   sync.Mutex // guards the fields below, and keptFor once there are links
	byID map[string]*linkedProxy
}

type linkedProxy struct {
	links int
	gone  time.Time // when the last one ended
}

func (ps *linkedProxies) linked(proxy string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.byID[proxy] == nil {
		if ps.byID == nil {
			ps.byID = make(map[string]*linkedProxy)
		}
		ps.byID[proxy] = &linkedProxy{}
	}
	ps.byID[proxy].links++
}

func (ps *linkedProxies) unlinked(proxy string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.byID[proxy]
	if p.links--; p.links == 0 {
		p.gone = time.Now()
		time.AfterFunc(ps.keptFor, func() { ps.expire(proxy) }) // after the host's stop there is nothing left
	}
}

func (ps *linkedProxies) expire(proxy string) {
	ps.mu.Lock()
	p := ps.byID[proxy]
	gone := p != nil && p.links == 0 && time.Since(p.gone) >= ps.keptFor
	if gone {
		delete(ps.byID, proxy)
	}
	last := len(ps.byID) == 0
	ps.mu.Unlock()
	if gone {
		ps.forget(proxy, last)
	}
}
