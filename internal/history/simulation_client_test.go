package main

import (
	"encoding/json"
	"strconv"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// A memoryWire is a client's end of a Conn.
type memoryWire struct {
	*partyConn
	done chan struct{} // closed when nothing arrives any more
}

func newMemoryWire(c *partyConn, to receiver) *memoryWire {
	w := &memoryWire{c, make(chan struct{})}
	go func() {
		defer close(w.done)
		to.ended(c.read(func(m *message, _ string) { to.receive(m) }))
	}()
	return w
}

func (w *memoryWire) send(m *message)  { w.push(m, "") }
func (w *memoryWire) cancel(id string) { notifyCancelled(w, id) }

func (w *memoryWire) leave(how string) {
	if how == halfClose {
		w.finish()
	} else {
		w.stop()
	}
	<-w.done
}

// A memoryPrincipal is the Conn that all clients of a principal on modern HTTP share.
type memoryPrincipal struct {
	*partyConn

	mu   sync.Mutex
	last int
	open map[string]*memoryPost // by id on the Conn
	over bool
}

// A memoryPost is a request of one of its clients.
type memoryPost struct {
	from *memoryPosts
	id   json.RawMessage // that its client gave
}

// run hands on messages to the clients for whose requests they are.
func (p *memoryPrincipal) run() {
	_ = p.read(func(m *message, related string) {
		id := related
		if m.isResponse() {
			id = string(m.ID)
		}
		p.mu.Lock()
		post := p.open[id]
		if m.isResponse() {
			delete(p.open, id)
		}
		p.mu.Unlock()
		if post == nil {
			return // of a client that has left, or that belongs to nothing
		}
		if m.isResponse() {
			m.ID = post.id
		}
		post.from.to.receive(m)
	})
	p.mu.Lock()
	p.over = true
	open := p.open
	p.open = nil
	p.mu.Unlock()
	for _, post := range open {
		post.from.to.receive(&message{ID: post.id, Error: encode(closedByProxy)})
	}
}

// closedByProxy is what the front end answers when a session has ended.
var closedByProxy = object{"code": -32603, "message": "Connection closed: this session is over", "data": object{"reason": "connection_closed"}}

// ask sends a request of a client, unless the Conn has ended.
func (p *memoryPrincipal) ask(from *memoryPosts, m *message) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return false
	}
	p.last++
	id := strconv.Itoa(p.last)
	p.open[id] = &memoryPost{from, m.ID}
	mine := *m
	mine.ID = json.RawMessage(id)
	p.push(&mine, "")
	return true
}

// abandon cancels the requests of a client: all, or one.
func (p *memoryPrincipal) abandon(from *memoryPosts, which string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, post := range p.open {
		if post.from == from && (which == "" || which == string(post.id)) {
			delete(p.open, id)
			p.push(&message{Method: "notifications/cancelled", Params: encode(object{"requestId": json.RawMessage(id)})}, "")
		}
	}
}

// memoryPosts are the requests of one client on modern HTTP, each of which stands alone.
type memoryPosts struct {
	of func() *memoryPrincipal // of the proxy that runs now
	to receiver
}

func (w *memoryPosts) send(m *message) {
	if m.isRequest() && !w.of().ask(w, m) {
		w.to.receive(&message{ID: m.ID, Error: encode(closedByProxy)})
	}
}

func (w *memoryPosts) cancel(id string) { w.of().abandon(w, id) }

func (w *memoryPosts) leave(string) {
	w.of().abandon(w, "")
	w.to.ended(nil)
}

// principal returns the Conn of a principal.
func (s *simulation) principal(name string) *memoryPrincipal {
	p := s.enter()
	defer p.serving.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.principals[name]; c != nil {
		return c
	}
	near, other, pauses := s.pipe()
	c := &memoryPrincipal{partyConn: newPartyConn(other, pauses), open: map[string]*memoryPost{}}
	p.principals[name] = c
	go c.run()
	p.serving.Go(func() { _ = p.router.ServePrincipal(p.ctx, tokenOf(name), "", near) })
	return c
}

func tokenOf(name string) identity.Principal {
	return identity.Principal{Kind: identity.Token, Name: name}
}

// dialPosts connects a client on modern HTTP.
func (s *simulation) dialPosts(_ *world, _ func() string, to receiver) (wire, error) {
	name := principalOf(to.(*client).name)
	return &memoryPosts{func() *memoryPrincipal { return s.principal(name) }, to}, nil
}
