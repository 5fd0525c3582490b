package upstream

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Bounds of the messages that are kept. Clients send little before initialize is answered.
const (
	maxKept      = 256
	maxKeptBytes = 1 << 20
)

// A keptStream is a client's stream whose server may turn out to speak the other era. It keeps what the client
// sends until the server has answered something. If it is closed before that with [mcp.ErrOtherEra], and nothing
// was delivered, the client's stream stays open and moves: next serves it and receives all messages again.
//
// While it keeps messages, a goroutine reads the next one, so that the reader returns when the stream moves.
// Afterwards the reader reads itself.
type keptStream struct {
	// Static after construction.
	c    jsonrpc.Conn // the client's
	era  mcp.Era
	next func(moved jsonrpc.Conn)       // serves the stream after it has moved
	stay func(end *jsonrpc.ClosedError) // called if the stream ends because its server speaks the other era

	answered atomic.Bool // no more messages are kept
	direct   bool        // no message is kept, and no read is in progress; owned by the reader
	wg       sync.WaitGroup
	read     chan readResult // buffered; result of the read in progress
	moved    chan struct{}   // closed when the stream moves

	mu      sync.Mutex // guards the fields below, which do not change after the move; held to close moved
	reading bool
	kept    []*jsonrpc.Message
	bytes   int          // in kept
	asked   []jsonrpc.ID // requests of the server that were sent to the client
}

type readResult struct {
	m   *jsonrpc.Message
	err error
}

func newKeptStream(c jsonrpc.Conn, era mcp.Era) *keptStream {
	return &keptStream{c: c, era: era, read: make(chan readResult, 1), moved: make(chan struct{})}
}

// Recv implements [jsonrpc.Conn].
func (k *keptStream) Recv() (*jsonrpc.Message, error) {
	if k.readsAhead() {
		select {
		case r := <-k.read:
			return k.keep(r)
		case <-k.moved:
			return nil, jsonrpc.ErrClosed
		}
	}
	return k.c.Recv()
}

// RecvAll is [jsonrpc.RecvAll].
func (k *keptStream) RecvAll(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	if k.direct {
		return jsonrpc.RecvAll(k.c, batch)
	}
	m, err := k.Recv()
	if err != nil {
		return batch, err
	}
	return append(batch, m), nil
}

// Rest implements [jsonrpc.Resting] once no message is kept.
func (k *keptStream) Rest(resume func()) bool {
	r, ok := k.c.(jsonrpc.Resting)
	return ok && k.readsItself() && r.Rest(resume)
}

// readsItself reports whether the reader can read the client's stream itself, because the stream cannot move any more.
func (k *keptStream) readsItself() bool {
	if !k.direct {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.direct = !k.reading && !closed(k.moved) && k.answered.Load()
	}
	return k.direct
}

// readsAhead reports whether a goroutine, which it starts, reads the next message.
func (k *keptStream) readsAhead() bool {
	if k.readsItself() {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.reading && !closed(k.moved) {
		k.reading = true
		k.wg.Go(k.readAhead)
	}
	return true
}

func (k *keptStream) readAhead() {
	m, err := k.c.Recv()
	k.read <- readResult{m, err}
}

// keep keeps a message that was read. If the stream has moved meanwhile, the next reader gets it.
func (k *keptStream) keep(r readResult) (*jsonrpc.Message, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if closed(k.moved) {
		k.read <- r
		return nil, jsonrpc.ErrClosed
	}
	k.reading = false
	if r.m != nil && !k.answered.Load() {
		k.kept = append(k.kept, copyOf(r.m)) // the readers of both servers may set its notes
		k.bytes += r.m.Size()
		if len(k.kept) > maxKept || k.bytes > maxKeptBytes {
			k.settleLocked()
		}
	}
	return r.m, r.err
}

func copyOf(m *jsonrpc.Message) *jsonrpc.Message {
	mine := *m
	for i, e := range m.Batch {
		if i == 0 {
			mine.Batch = make([]*jsonrpc.Message, len(m.Batch))
		}
		mine.Batch[i] = copyOf(e)
	}
	return &mine
}

// settleLocked stops keeping messages: the stream cannot move any more.
func (k *keptStream) settleLocked() {
	k.answered.Store(true)
	k.kept, k.asked = nil, nil
}

// Send implements [jsonrpc.Conn].
func (k *keptStream) Send(m *jsonrpc.Message) error { return k.SendAll([]*jsonrpc.Message{m}) }

// SendAll is [jsonrpc.SendAll].
func (k *keptStream) SendAll(batch []*jsonrpc.Message) error {
	if !k.answered.Load() && !k.pass(batch) {
		return jsonrpc.ErrClosed
	}
	return jsonrpc.SendAll(k.c, batch)
}

// pass records messages to the client. It reports false if the stream has moved. In the modern era any message
// shows that the server has received a request of this client.
func (k *keptStream) pass(batch []*jsonrpc.Message) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range batch {
		switch {
		case closed(k.moved):
		case k.era == mcp.Modern, m.Method == "", len(k.asked) == maxKept:
			k.settleLocked()
		case m.IsRequest():
			k.asked = append(k.asked, m.ID)
		}
	}
	return !closed(k.moved)
}

// Close implements [jsonrpc.Conn].
func (k *keptStream) Close() error { return k.CloseCause(jsonrpc.ErrClosed) }

// CloseCause is [jsonrpc.CloseWith].
func (k *keptStream) CloseCause(cause error) error {
	end, ok := errors.AsType[*jsonrpc.ClosedError](cause)
	if k.move(ok && errors.Is(end, mcp.ErrOtherEra) && !end.Delivered) {
		return nil
	}
	return k.close(cause)
}

// close closes the client's stream.
func (k *keptStream) close(cause error) error {
	if end, ok := errors.AsType[*jsonrpc.ClosedError](cause); ok && errors.Is(end, mcp.ErrOtherEra) {
		k.stay(end)
	}
	return jsonrpc.CloseWith(k.c, cause)
}

// move has the stream served again, if may is set and nothing was answered. It reports whether the stream has
// moved, now or before.
func (k *keptStream) move(may bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if may && !closed(k.moved) && !k.answered.Load() {
		close(k.moved)
		k.wg.Go(k.serveMoved)
	}
	return closed(k.moved)
}

func (k *keptStream) serveMoved() {
	for _, id := range k.asked { // the server that sent them is gone
		_ = k.c.Send(mcp.Cancellation(id, "the server speaks another era"))
	}
	k.next(&movedStream{k: k, kept: k.kept, Conn: k.c})
}

// A movedStream is a client's stream from its first message, after it has moved.
type movedStream struct {
	jsonrpc.Conn
	k    *keptStream
	kept []*jsonrpc.Message // to be delivered again
	done bool               // kept and the read in progress are delivered
}

// Recv implements [jsonrpc.Conn].
func (s *movedStream) Recv() (*jsonrpc.Message, error) {
	switch {
	case len(s.kept) > 0:
		m := s.kept[0]
		s.kept = s.kept[1:]
		return m, nil
	case !s.done && s.k.reading:
		s.done = true
		r := <-s.k.read
		return r.m, r.err
	}
	s.done = true
	return s.Conn.Recv()
}

// RecvAll is [jsonrpc.RecvAll].
func (s *movedStream) RecvAll(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	if s.done {
		return jsonrpc.RecvAll(s.Conn, batch)
	}
	m, err := s.Recv()
	if err != nil {
		return batch, err
	}
	return append(batch, m), nil
}

// SendAll is [jsonrpc.SendAll].
func (s *movedStream) SendAll(batch []*jsonrpc.Message) error { return jsonrpc.SendAll(s.Conn, batch) }

// CloseCause is [jsonrpc.CloseWith].
func (s *movedStream) CloseCause(cause error) error { return s.k.close(cause) }
