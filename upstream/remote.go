package upstream

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// A remote server is a session that Upstream.Dial begins. It is dialled by recv,
// so that the stream can end meanwhile.
type remote struct {
	// Static after construction.
	dial   func(context.Context) (jsonrpc.Conn, error)
	wg     *sync.WaitGroup // the stream's
	ctx    context.Context // of the session; done: it ends at once
	cancel context.CancelFunc

	dialled chan struct{} // closed by recv, with conn and err set
	conn    jsonrpc.Conn  // nil if there is none
	err     error

	mu    sync.Mutex         // guards the field below
	early []*jsonrpc.Message // to be sent first when conn is there

	ending   chan struct{} // closed by finish and abort
	left     chan struct{} // closed when leave is through; set before ending is closed
	endsOnce sync.Once
}

func newRemote(ctx context.Context, up *Upstream, wg *sync.WaitGroup) *remote {
	r := &remote{dial: up.Dial, wg: wg, dialled: make(chan struct{}), ending: make(chan struct{}), left: make(chan struct{})}
	r.ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx)) // leave and stop see to its end
	return r
}

func (r *remote) start() error { return nil }

// await returns the session, nil if there is none.
func (r *remote) await() jsonrpc.Conn {
	<-r.dialled
	return r.conn
}

// maxEarly is how many messages may come before the session is there; then send
// waits for it. A proxy sends initialize, and then waits itself.
const maxEarly = 64

// send leaves it to recv to tell of a session that is lost.
func (r *remote) send(batch []*jsonrpc.Message) {
	if r.isEarly(batch) {
		return
	}
	if conn := r.await(); conn != nil {
		_ = jsonrpc.SendAll(conn, batch)
	}
}

// isEarly keeps messages for a session that is being dialled.
func (r *remote) isEarly(batch []*jsonrpc.Message) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if closed(r.dialled) || len(r.early) >= maxEarly {
		return false
	}
	r.early = append(r.early, batch...)
	return true
}

// connect dials the session and sends what has come meanwhile.
func (r *remote) connect() {
	r.conn, r.err = r.dial(r.ctx)
	for {
		r.mu.Lock()
		early := r.early
		r.early = nil
		if r.conn == nil || len(early) == 0 {
			close(r.dialled)
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		_ = jsonrpc.SendAll(r.conn, early)
	}
}

func (r *remote) recv(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	if !closed(r.dialled) {
		r.connect()
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
func lostSession(err error) error {
	if end, ok := errors.AsType[*jsonrpc.ClosedError](err); ok {
		return end
	}
	return &jsonrpc.ClosedError{Cause: causeLost, Delivered: true, Err: err}
}

func (r *remote) finish(last []*jsonrpc.Message) { r.leave(last) }

func (r *remote) abort() { r.leave(nil) }

// farewellTimeout bounds how long a server may take to accept what it is told at
// the end. Then the session is closed, which bounds the rest.
const farewellTimeout = time.Second

// leave takes leave of the server. A session that is not there yet will not be
// needed any more.
func (r *remote) leave(last []*jsonrpc.Message) {
	r.endsOnce.Do(func() {
		close(r.ending)
		if !closed(r.dialled) {
			r.cancel()
		}
		r.wg.Go(func() {
			defer close(r.left)
			if conn := r.await(); conn != nil {
				late := time.AfterFunc(farewellTimeout, func() { conn.Close() })
				_ = jsonrpc.SendAll(conn, last) // nobody is left to be told
				late.Stop()
				conn.Close()
			}
		})
	})
}

// forcedFarewell is how long a server may take to hear the last words when the stop
// is forced. A server elsewhere goes on with what it was asked unless it hears of
// the end.
const forcedFarewell = 500 * time.Millisecond

func (r *remote) stop(ctx context.Context) {
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

func (r *remote) status(st *Status) {
	switch {
	case closed(r.left):
		st.State = StateReady
	case closed(r.ending):
		st.State = StateStopping
	}
}

func (r *remote) lastWords(log *slog.Logger) *slog.Logger { return log }
