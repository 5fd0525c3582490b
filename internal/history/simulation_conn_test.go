package main

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// pauses are random times that a seed gives.
type pauses struct {
	longest time.Duration

	mu     sync.Mutex
	random *rand.Rand
}

func (p *pauses) next() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.longest == 0 || p.random.IntN(2) == 0 {
		return 0
	}
	return time.Duration(p.random.Int64N(int64(p.longest)))
}

func (p *pauses) pause() {
	if d := p.next(); d > 0 {
		time.Sleep(d)
	}
}

// A pausedConn is the proxy's end of a Conn. It pauses at each message.
type pausedConn struct {
	*jsonrpc.PipeConn
	*pauses
}

func (c pausedConn) Recv() (*jsonrpc.Message, error) {
	m, err := c.PipeConn.Recv()
	c.pause()
	return m, err
}

func (c pausedConn) Send(m *jsonrpc.Message) error {
	c.pause()
	return c.PipeConn.Send(m)
}

// A partyConn is the end of a Conn that a client or a server of ours has. What it sends waits in a queue, since they
// send with locks held.
type partyConn struct {
	*jsonrpc.PipeConn
	*pauses

	mu     sync.Mutex
	queue  []*jsonrpc.Message
	more   chan struct{} // takes one: the queue has something
	closed bool          // nothing is sent any more
	frozen chan struct{} // nil, or closed when it goes on
	half   bool          // the last message is followed by a half-close
}

func newPartyConn(c *jsonrpc.PipeConn, p *pauses) *partyConn {
	e := &partyConn{PipeConn: c, pauses: p, more: make(chan struct{}, 1)}
	go e.write()
	return e
}

// read receives messages until there is no more.
func (e *partyConn) read(take func(m *message)) error {
	defer e.stop()
	for {
		m, err := e.Recv()
		if err != nil {
			return err
		}
		e.pause()
		e.thaw()
		var ours message
		if err := json.Unmarshal(m.Append(nil), &ours); err != nil {
			panic(err) // the proxy wrote it
		}
		take(&ours)
	}
}

// push sends a message that belongs to a request, "" for none.
func (e *partyConn) push(m *message, related string) {
	theirs, err := jsonrpc.Decode(m.bytes())
	if err != nil {
		panic(err)
	}
	if related != "" {
		theirs.Related, _ = jsonrpc.ParseID([]byte(related))
	}
	e.mu.Lock()
	e.queue = append(e.queue, theirs)
	e.mu.Unlock()
	e.wake()
}

func (e *partyConn) wake() {
	select {
	case e.more <- struct{}{}:
	default:
	}
}

func (e *partyConn) write() {
	for range e.more {
		for {
			e.mu.Lock()
			over, end, batch := e.closed, e.half, e.queue
			e.queue = nil
			e.mu.Unlock()
			for _, m := range batch {
				e.pause()
				e.thaw()
				_ = e.Send(m) // an end shows at read
			}
			if end {
				e.CloseWrite()
			}
			if over {
				return
			}
			if batch == nil {
				break
			}
		}
	}
}

// finish half-closes the Conn after what was sent.
func (e *partyConn) finish() {
	e.mu.Lock()
	e.half = true
	e.mu.Unlock()
	e.wake()
}

// stop sends nothing more.
func (e *partyConn) stop() {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.Close()
	e.wake()
}

// freeze stops all messages for a time.
func (e *partyConn) freeze(d time.Duration) {
	over := make(chan struct{})
	e.mu.Lock()
	e.frozen = over
	e.mu.Unlock()
	time.Sleep(d)
	close(over)
}

func (e *partyConn) thaw() {
	e.mu.Lock()
	over := e.frozen
	e.mu.Unlock()
	if over != nil {
		<-over
	}
}

// A memoryWire is a client's end of a Conn.
type memoryWire struct {
	*partyConn
	done chan struct{} // closed when nothing arrives any more
}

func newMemoryWire(c *partyConn, to receiver) *memoryWire {
	w := &memoryWire{c, make(chan struct{})}
	go func() {
		defer close(w.done)
		to.ended(c.read(to.receive))
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

// A memoryServer is a server's end of a Conn.
type memoryServer struct {
	*partyConn
	serves *connection
	ctx    context.Context
	end    context.CancelFunc
}

// newMemoryServer returns a server that is not run yet. relates is whether its messages say to which request they belong.
func newMemoryServer(s *server, relates bool, c *partyConn) *memoryServer {
	m := &memoryServer{partyConn: c}
	m.ctx, m.end = context.WithCancel(context.Background())
	m.serves = newConnection(s, func(request string, what *message) {
		if !relates {
			request = ""
		}
		c.push(what, request)
	})
	return m
}

func (s *memoryServer) run() {
	defer s.end()
	_ = s.read(func(m *message) { s.serves.handle(s.ctx, m) })
}

// kill ends the server in one of the ways in which servers end.
func (s *memoryServer) kill(way int) {
	switch way {
	case 0: // its process is killed
		s.end()
		_ = s.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.SignalCause("killed"), Delivered: true})
	case 1: // its connection breaks
		s.end()
		s.stop()
	case 2: // it closes its output, and goes on
		s.finish()
	}
}

// A memoryRegister is a register that all servers of a name share.
type memoryRegister struct {
	mu     sync.Mutex
	values map[string]int
}

func (r *memoryRegister) apply(a call) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a.change(r.values)
	return r.values[a.Key], nil
}
