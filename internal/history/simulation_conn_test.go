package main

import (
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

// one reports whether one of n chances has come.
func (p *pauses) one(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.random.IntN(n) == 0
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

// Rest implements [jsonrpc.Resting], often at once.
func (c pausedConn) Rest(resume func()) bool { return c.RestFor(c.next(), resume) }

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
	rude   *rudeness     // nil if it keeps to the protocol
}

func newPartyConn(c *jsonrpc.PipeConn, p *pauses) *partyConn {
	e := &partyConn{PipeConn: c, pauses: p, more: make(chan struct{}, 1)}
	if p.one(4) {
		e.rude = &rudeness{p, map[string]*jsonrpc.Message{}}
	}
	go e.write()
	return e
}

// read receives messages until there is no more, each with the id of the request to which it says that it belongs.
func (e *partyConn) read(take func(m *message, related string)) error {
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
		take(&ours, m.Related.String())
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
	e.queue = append(append(e.queue, theirs), e.rude.after(theirs)...)
	e.mu.Unlock()
	e.wake()
}

// A rudeness says things again when they are over: answers, replies and cancellations, and after an answer its progress.
type rudeness struct {
	*pauses
	progress map[string]*jsonrpc.Message // the last of each call, by token
}

// after returns what is said again after a message.
func (r *rudeness) after(m *jsonrpc.Message) (again []*jsonrpc.Message) {
	if r == nil {
		return nil
	}
	if m.Method == "notifications/progress" {
		token, _ := jsonrpc.Member(m.Params, "progressToken")
		r.progress[string(token)] = m
	}
	if over := m.IsResponse() || m.Method == "notifications/cancelled"; over && r.one(4) {
		again = append(again, m)
	}
	if late := r.progress[m.ID.String()]; late != nil && m.IsResponse() {
		again = append(again, late)
	}
	for i, m := range again {
		mine := *m
		again[i] = &mine
	}
	return again
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
