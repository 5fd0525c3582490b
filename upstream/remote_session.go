package upstream

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	// maxBacklog bounds the bytes that wait for a remote server. It is more than a link's
	// stream has in transit, so that readStream usually sees the stream's end.
	maxBacklog = 1 << 20

	// farewellTimeout bounds how long a server may take to accept the last messages. Then
	// the session is closed, which has its own bounds.
	farewellTimeout = time.Second

	// forcedFarewell is how long the end of the session may take when the stop is forced:
	// the last messages, the answers to calls, and the DELETE. Without these, a remote
	// server would go on with the calls.
	forcedFarewell = 750 * time.Millisecond
)

// A remoteSession is a server that Upstream.Dial or DialModern reaches. Recv dials it. What is sent
// waits in a queue, so that readStream does not block and sees the end of the stream, as with the
// backlog of a process.
type remoteSession struct {
	// Static after construction.
	dial   func(context.Context) (jsonrpc.Conn, error)
	wg     *sync.WaitGroup // the stream's
	ctx    context.Context // of the session; done: it ends at once
	cancel context.CancelFunc

	dialled chan struct{} // closed by Recv, with conn and err set
	conn    jsonrpc.Conn  // nil if there is none
	err     error

	left chan struct{} // closed when nothing is left of the session
	lost atomic.Bool   // the server has ended the session, or was not reached

	mu    sync.Mutex // guards queue and room
	queue *jsonrpc.Queue
	room  jsonrpc.Room
}

func newRemoteSession(
	ctx context.Context, dial func(context.Context) (jsonrpc.Conn, error), wg *sync.WaitGroup,
) *remoteSession {
	r := &remoteSession{
		dial: dial, wg: wg, dialled: make(chan struct{}), left: make(chan struct{}), room: jsonrpc.Room{Bytes: maxBacklog},
	}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx)) // Finish, Abort and Stop end it
	r.queue = jsonrpc.NewQueue(&r.mu)
	return r
}

// Send implements server.
func (r *remoteSession) Send(batch []*jsonrpc.Message, accepted func([]*jsonrpc.Message)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue.Wait(&r.room, 1) != nil {
		return
	}
	accepted(batch)
	for _, m := range batch {
		r.queue.Force(jsonrpc.Queued{Message: m, Room: &r.room})
	}
}

// reach begins the session, and sends what is queued until the queue ends.
func (r *remoteSession) reach() {
	r.conn, r.err = r.dial(r.ctx)
	close(r.dialled)
	if r.conn == nil {
		close(r.left)
		return
	}
	r.queue.Start(r.conn, r.written)
}

// written closes the session when the queue has ended. If the session was lost before, it drops what
// is queued until then; Recv reports the loss.
func (r *remoteSession) written(err error) {
	if err != nil {
		for err = nil; err == nil; _, err = r.queue.Next() {
		}
	}
	r.conn.Close()
	close(r.left)
}

// Recv implements server. The first call begins the session.
func (r *remoteSession) Recv(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	if !closed(r.dialled) {
		r.reach()
	}
	if r.conn == nil {
		r.lost.Store(true)
		return batch, jsonrpc.EndOf(r.err, jsonrpc.CauseConnectionLost)
	}
	batch, err := jsonrpc.RecvAll(r.conn, batch)
	if _, bad := errors.AsType[*jsonrpc.InvalidError](err); err != nil && !bad {
		r.lost.Store(true)
		err = jsonrpc.EndOf(err, jsonrpc.CauseConnectionLost)
	}
	return batch, err
}

// sessionless reports whether the server answered initialize without beginning a session.
// It is valid when Recv has returned that answer.
func (r *remoteSession) sessionless() bool {
	c, ok := r.conn.(interface{ Sessionless() bool })
	return ok && c.Sessionless()
}

// Finish implements server. It gives up a dial in progress.
func (r *remoteSession) Finish(last func() []*jsonrpc.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if closed(r.dialled) {
		r.queue.Finish(jsonrpc.ErrClosed, farewellTimeout, last)
		return
	}
	r.queue.Close(jsonrpc.ErrClosed) // a dial that succeeds nevertheless must send nothing
	r.cancel()
}

// Abort implements server. It closes the session at once, which unblocks what is being sent.
func (r *remoteSession) Abort() {
	r.mu.Lock()
	r.queue.Close(jsonrpc.ErrClosed)
	r.mu.Unlock()
	if !closed(r.dialled) {
		r.cancel()
	}
	r.wg.Go(func() {
		if <-r.dialled; r.conn != nil {
			r.conn.Close()
		}
	})
}

// Stop implements server.
func (r *remoteSession) Stop(ctx context.Context) {
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

// Gone implements server. A lost session is gone, though our end may still be open.
func (r *remoteSession) Gone() bool { return r.lost.Load() || closed(r.left) }

func closed(event <-chan struct{}) bool {
	select {
	case <-event:
		return true
	default:
		return false
	}
}
