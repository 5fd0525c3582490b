package remote

import (
	"errors"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A throttle keeps a session on a WebSocket to MaxConcurrent. Requests beyond
// that wait for a slot, and what is sent behind them does not wait for them: the
// calls in flight may need it to get on. A request has its slot until it is
// answered or cancelled.
//
// Goroutines: read, one for each request that waits (at most maxOpen; those
// beyond are answered with an error), and for a moment one for each such answer.
// Close waits for them.
type throttle struct {
	// Static after construction.
	conn   jsonrpc.Conn
	server *Server
	in     chan received // to Recv; never closed
	ended  chan struct{} // closed by read, with err set
	left   chan struct{} // closed by Close

	err error // the end of conn

	closing sync.Once
	wg      sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	over  bool       // no goroutine may be started any more
	turns map[jsonrpc.ID]*turn
}

// A turn is a request that waits for a slot or has one.
type turn struct {
	written chan struct{} // closed when the request was sent, or will not be
	gone    chan struct{} // closed by whoever takes the turn out

	started bool // it is being sent, and has a slot; guarded by throttle.mu
}

func newThrottle(conn jsonrpc.Conn, server *Server) *throttle {
	t := &throttle{
		conn: conn, server: server, in: make(chan received, inDepth),
		ended: make(chan struct{}), left: make(chan struct{}), turns: make(map[jsonrpc.ID]*turn),
	}
	t.wg.Go(t.read)
	return t
}

// Recv implements jsonrpc.Conn.
func (t *throttle) Recv() (*jsonrpc.Message, error) {
	select {
	case r := <-t.in:
		return r.result()
	case <-t.left:
		return nil, jsonrpc.ErrClosed
	case <-t.ended:
	}
	select {
	case r := <-t.in:
		return r.result()
	default:
		return nil, t.err
	}
}

// read passes on what comes, and gives back the slots of what it answers.
func (t *throttle) read() {
	defer t.takeAll()
	defer close(t.ended)
	for {
		m, err := t.conn.Recv()
		invalid, bad := errors.AsType[*jsonrpc.InvalidError](err)
		switch {
		case err == nil:
			t.answered(m)
		case bad && invalid.Reply:
			t.take(invalid.ID)
		case !bad:
			t.err = err
			return
		}
		t.put(received{m, invalid})
	}
}

func (t *throttle) put(r received) {
	select {
	case t.in <- r:
	case <-t.left:
	}
}

func (t *throttle) answered(m *jsonrpc.Message) {
	for _, e := range m.Batch {
		t.answered(e)
	}
	if m.IsResponse() {
		t.take(m.ID)
	}
}

// Send implements jsonrpc.Conn. It waits for a slow server, never for a slot.
func (t *throttle) Send(m *jsonrpc.Message) error {
	for _, e := range m.Batch {
		if err := t.Send(e); err != nil {
			return err
		}
	}
	switch {
	case m.Batch != nil:
		return nil
	case m.IsRequest() && takesSlot(m.Method):
		return t.request(m)
	case m.Method == mcp.MethodCancelled && t.cancelled(m):
		return nil
	}
	return t.conn.Send(m)
}

// request sends m if there is a slot, and else begins to wait for one.
func (t *throttle) request(m *jsonrpc.Message) error {
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return t.conn.Send(m) // which says why not
	}
	if refusal := t.server.refusal(m.ID, t.turns[m.ID] != nil, len(t.turns)); refusal != nil {
		t.wg.Go(func() { t.put(received{m: refusal}) })
		t.mu.Unlock()
		return nil
	}
	r := &turn{written: make(chan struct{}), gone: make(chan struct{})}
	t.turns[m.ID] = r
	select {
	case t.server.slots <- struct{}{}:
		r.started = true
		t.mu.Unlock()
		defer close(r.written)
		return t.conn.Send(m)
	default:
		t.wg.Go(func() { t.wait(r, m) })
		t.mu.Unlock()
		return nil
	}
}

// wait sends m when there is a slot for it. If that fails read hears of it.
func (t *throttle) wait(r *turn, m *jsonrpc.Message) {
	defer close(r.written)
	select {
	case t.server.slots <- struct{}{}:
	case <-r.gone:
		return
	}
	if t.start(r) {
		t.conn.Send(m)
		return
	}
	<-t.server.slots
}

// start reports whether a request that has just got a slot is still wanted.
func (t *throttle) start(r *turn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-r.gone:
		return false
	default:
		r.started = true
		return true
	}
}

// cancelled gives back the slot of a request that m cancels. With true the server
// has not seen that request, and need not hear of m. Else it has: what cancels
// must not overtake.
func (t *throttle) cancelled(m *jsonrpc.Message) bool {
	text, err := jsonrpc.Member(m.Params, "requestId")
	if err != nil {
		return false
	}
	id, _ := jsonrpc.ParseID(text)
	r, started := t.take(id)
	if r == nil {
		return false
	}
	<-r.written
	return !started
}

// take takes a turn out, and gives its slot back if it has one. It returns nil if
// there is none.
func (t *throttle) take(id jsonrpc.ID) (r *turn, started bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r = t.turns[id]; r == nil {
		return nil, false
	}
	t.takeLocked(id, r)
	return r, r.started
}

func (t *throttle) takeLocked(id jsonrpc.ID, r *turn) {
	delete(t.turns, id)
	close(r.gone)
	if r.started {
		<-t.server.slots // its own element, so this does not wait
	}
}

// takeAll ends all turns: the session is over.
func (t *throttle) takeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	for id, r := range t.turns {
		t.takeLocked(id, r)
	}
}

// Close implements jsonrpc.Conn. Requests that wait are given up.
func (t *throttle) Close() error {
	t.closing.Do(func() {
		t.takeAll()
		close(t.left)
		t.conn.Close()
		t.wg.Wait()
	})
	return nil
}
