package remote

import (
	"context"
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
	*inbox
	conn  jsonrpc.Conn
	name  string // of the upstream
	slots *slots

	closing sync.Once
	wg      sync.WaitGroup

	mu    sync.Mutex // guards turns, and what they say
	turns jsonrpc.Table[jsonrpc.ID, *slotWait]
}

// A slotWait is a request that waits for a slot or has one.
type slotWait struct {
	written chan struct{} // closed when the request was sent, or will not be
	gone    chan struct{} // closed by whoever takes the turn out

	started bool // it is being sent, and has a slot; guarded by throttle.mu
}

func newThrottle(conn jsonrpc.Conn, t *transport) *throttle {
	w := &throttle{
		inbox: newInbox(), conn: conn, name: t.name, slots: t.slots,
		turns: jsonrpc.Table[jsonrpc.ID, *slotWait]{Max: maxOpen},
	}
	w.wg.Go(w.read)
	return w
}

// read passes on what comes, and gives back the slots of what it answers.
func (w *throttle) read() {
	defer w.takeAll()
	for {
		m, err := w.conn.Recv()
		invalid, bad := errors.AsType[*jsonrpc.InvalidError](err)
		switch {
		case err == nil:
			w.answered(m)
		case bad && invalid.Reply:
			w.take(invalid.ID)
		case !bad:
			w.end(err)
			return
		}
		w.put(received{m, invalid})
	}
}

func (w *throttle) answered(m *jsonrpc.Message) {
	for _, e := range elements(m) {
		if e.IsResponse() {
			w.take(e.ID)
		}
	}
}

// Send implements jsonrpc.Conn. It waits for a slow server, never for a slot.
func (w *throttle) Send(m *jsonrpc.Message) error {
	for _, e := range elements(m) {
		if err := w.send(e); err != nil {
			return err
		}
	}
	return nil
}

func (w *throttle) send(m *jsonrpc.Message) error {
	switch {
	case m.IsRequest() && takesSlot(m.Method):
		return w.request(m)
	case m.Method == mcp.MethodCancelled && w.cancelled(m):
		return nil
	}
	return w.conn.Send(m)
}

// request sends m if there is a slot, and else begins to wait for one.
func (w *throttle) request(m *jsonrpc.Message) error {
	r := &slotWait{written: make(chan struct{}), gone: make(chan struct{})}
	w.mu.Lock()
	if err := w.turns.Add(m.ID, r); errors.Is(err, jsonrpc.ErrClosed) {
		w.mu.Unlock()
		return w.conn.Send(m) // which says why not
	} else if err != nil {
		w.wg.Go(func() { w.put(received{m: refusal(w.name, m.ID, err)}) })
		w.mu.Unlock()
		return nil
	}
	if r.started = w.slots.try(); !r.started {
		w.wg.Go(func() { w.wait(r, m) })
		w.mu.Unlock()
		return nil
	}
	w.mu.Unlock()
	defer close(r.written)
	return w.conn.Send(m)
}

// wait sends m when there is a slot for it. If that fails read hears of it.
func (w *throttle) wait(r *slotWait, m *jsonrpc.Message) {
	defer close(r.written)
	if !w.slots.wait(r.gone) {
		return
	}
	if w.start(m.ID, r) {
		w.conn.Send(m)
		return
	}
	w.slots.free()
}

// start reports whether a request that has just got a slot is still wanted.
func (w *throttle) start(id jsonrpc.ID, r *slotWait) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	r.started = w.turns.Has(id, r)
	return r.started
}

// cancelled gives back the slot of a request that m cancels. With true the server
// has not seen that request, and need not hear of m. Else it has: what cancels
// must not overtake.
func (w *throttle) cancelled(m *jsonrpc.Message) bool {
	id, _ := mcp.Read(m).ID(mcp.Key)
	r, started := w.take(id)
	if r == nil {
		return false
	}
	<-r.written
	return !started
}

// take takes a turn out, and gives its slot back if it has one. It returns nil if
// there is none.
func (w *throttle) take(id jsonrpc.ID) (r *slotWait, started bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.turns.TakeKey(id)
	if !ok {
		return nil, false
	}
	w.goneLocked(r)
	return r, r.started
}

func (w *throttle) goneLocked(r *slotWait) {
	close(r.gone)
	if r.started {
		w.slots.free()
	}
}

// takeAll ends all turns: the session is over.
func (w *throttle) takeAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.turns.Close(jsonrpc.ErrClosed) {
		w.goneLocked(r)
	}
}

// Close implements jsonrpc.Conn. Requests that wait are given up.
func (w *throttle) Close() error {
	w.closing.Do(func() {
		w.takeAll()
		w.end(jsonrpc.ErrClosed)
		w.conn.Close()
		w.wg.Wait()
	})
	return nil
}

// dialWebSocket begins a session with a server at a ws or wss URL, as dialSocket
// does, and keeps it to MaxConcurrent.
func dialWebSocket(ctx context.Context, t *transport) (jsonrpc.Conn, error) {
	w, err := dialSocket(ctx, t)
	switch {
	case err != nil:
		return nil, err
	case t.slots != nil:
		return newThrottle(w, t), nil
	}
	return w, nil
}

// dialModernWebSocket does as dialWebSocket for a stream of the modern era.
func dialModernWebSocket(ctx context.Context, t *transport) (jsonrpc.Conn, error) {
	conn, err := dialWebSocket(ctx, t)
	if err != nil {
		return nil, err
	}
	return &modernSocket{conn, t.failures.log}, nil
}
