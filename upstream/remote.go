package upstream

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A remote server is what Upstream.Dial or DialModern begins. Recv dials it, and
// write writes to it from a queue, so that whoever reads the stream always sees
// its end, as with the backlog of a process.
type remote struct {
	// Static after construction.
	dial   func(context.Context) (jsonrpc.Conn, error)
	wg     *sync.WaitGroup // the stream's
	ctx    context.Context // of the session; done: it ends at once
	cancel context.CancelFunc

	dialled chan struct{} // closed by Recv, with conn and err set
	conn    jsonrpc.Conn  // nil if there is none
	err     error

	left chan struct{} // closed by write at its end: nothing is left of the session

	mu      sync.Mutex // guards the fields below; not held while anything is sent
	changed sync.Cond
	queue   []*jsonrpc.Message // to write
	bytes   int                // in it; beyond maxBacklog, Send waits
	ending  bool               // nothing more is queued
}

func newRemote(ctx context.Context, dial func(context.Context) (jsonrpc.Conn, error), wg *sync.WaitGroup) *remote {
	r := &remote{dial: dial, wg: wg, dialled: make(chan struct{}), left: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx)) // Finish and Stop see to its end
	r.changed.L = &r.mu
	wg.Go(r.write)
	return r
}

func (r *remote) Send(batch []*jsonrpc.Message, accepted func([]*jsonrpc.Message)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.bytes >= maxBacklog && !r.ending {
		r.changed.Wait()
	}
	if r.ending {
		return
	}
	accepted(batch)
	for _, m := range batch {
		r.queue = append(r.queue, m)
		r.bytes += m.Size()
	}
	r.changed.Broadcast()
}

// write writes the queue until it has ended, and then takes leave. That the
// session is lost is Recv's to tell.
func (r *remote) write() {
	defer close(r.left)
	<-r.dialled
	if r.conn == nil {
		r.end(nil)
		return
	}
	for batch := r.next(); batch != nil; batch = r.next() {
		_ = jsonrpc.SendAll(r.conn, batch)
	}
	r.conn.Close()
}

// sessionless reports, once Recv has returned the result of initialize, whether there
// is no session all the same: each request stands alone.
func (r *remote) sessionless() bool {
	c, ok := r.conn.(interface{ Sessionless() bool })
	return ok && c.Sessionless()
}

// next waits for messages and takes them all; nil behind the last ones.
func (r *remote) next() []*jsonrpc.Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queue) == 0 && !r.ending {
		r.changed.Wait()
	}
	batch := r.queue
	r.queue, r.bytes = nil, 0
	r.changed.Broadcast()
	return batch
}

// end queues the last messages.
func (r *remote) end(last func() []*jsonrpc.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending {
		return
	}
	r.ending = true
	if last != nil {
		r.queue = append(r.queue, last()...)
	}
	r.changed.Broadcast()
}

func (r *remote) Recv(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	if !closed(r.dialled) {
		r.conn, r.err = r.dial(r.ctx)
		close(r.dialled)
	}
	if r.conn == nil {
		return batch, lostSession(r.err)
	}
	batch, err := jsonrpc.RecvAll(r.conn, batch)
	if _, bad := errors.AsType[*jsonrpc.InvalidError](err); err != nil && !bad {
		err = lostSession(err)
	}
	return batch, err
}

// lostSession makes err, the end of a session, one with a cause.
func lostSession(err error) error { return jsonrpc.EndOf(err, causeLost) }

// maxBacklog bounds the bytes that wait for a remote server. It is more than a stream
// has in transit, so that its end is usually seen behind the data.
const maxBacklog = 1 << 20

// farewellTimeout bounds how long a server may take to accept what it is told at
// the end. Then the session is closed, which bounds the rest.
const farewellTimeout = time.Second

// Finish needs no session that is not there yet.
func (r *remote) Finish(last func() []*jsonrpc.Message) {
	r.end(last)
	if !closed(r.dialled) {
		r.cancel()
	}
	late := time.NewTimer(farewellTimeout)
	r.wg.Go(func() { r.closeWhen(late.C) })
}

// Abort closes the session at once, which unblocks write.
func (r *remote) Abort() {
	r.end(nil)
	if !closed(r.dialled) {
		r.cancel()
	}
	now := make(chan time.Time)
	close(now)
	r.wg.Go(func() { r.closeWhen(now) })
}

// closeWhen closes the session at a time, unless it is left before.
func (r *remote) closeWhen(late <-chan time.Time) {
	select {
	case <-r.left:
		return
	case <-late:
	}
	if <-r.dialled; r.conn != nil {
		r.conn.Close()
	}
}

// forcedFarewell is how long a server may take to hear the last words when the stop
// is forced, and to answer what it was asked before it hears that the session is over.
// A server elsewhere goes on with what it was asked unless it hears of the end.
const forcedFarewell = 750 * time.Millisecond

func (r *remote) Stop(ctx context.Context) {
	defer r.cancel()
	select {
	case <-r.left:
		return
	case <-ctx.Done():
	}
	late := time.AfterFunc(forcedFarewell, r.cancel)
	defer late.Stop()
	<-r.left
}

func (r *remote) State() (stopping, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ending, closed(r.left)
}
