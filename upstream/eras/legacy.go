package eras

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/peer"
	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

const (
	// maxLegacyCalls bounds the open calls of one client. Those beyond are refused.
	maxLegacyCalls = 4096

	// flushTime is how long a client may take to read what its upstream had said
	// before it ended.
	flushTime = 5 * time.Second
)

// How much may wait to be sent to one side. Beyond, whoever brings more waits, too, or the
// calls of modern clients are refused.
const (
	maxQueued      = 1024
	maxQueuedBytes = 16 << 20
)

// A legacy is one legacy client's stream and the modern stream that is opened for
// it. It holds what a legacy session is: what initialize and setLevel said, what is
// subscribed to, and the calls that wait for an answer or for input. Its mu may be held
// where something is sent, and is taken where something has come.
type legacy struct {
	// Static after construction.
	upstream string
	log      *slog.Logger
	client   *peer.Peer // which may ask, and is asked what calls need
	modern   *peer.Peer
	timers   timers.Set

	mu        sync.Mutex // guards the fields below
	ended     bool
	hello     *hello // nil before initialize
	level     string // of logging/setLevel
	stamp     []byte // members of _meta that every modern request carries
	lists     listChanges
	resources subscriptions
}

// Legacy serves a legacy client whose upstream speaks modern. It owns client until
// it returns, and closes it with the end of the upstream's stream. The error is the
// cause of the end. All that was started has ended then.
func (b *Bridge) Legacy(ctx context.Context, upstream, key string, client jsonrpc.Conn) error {
	l := &legacy{upstream: upstream, log: b.logger().With("upstream", upstream), level: unsaidLevel}
	l.lists.l, l.resources.l, l.resources.wanted = l, l, make(map[string]bool)
	room := jsonrpc.Room{Messages: maxQueued, Bytes: maxQueuedBytes}
	l.client = peer.New(peer.Options{Name: upstream, Room: room, Ready: l.readyForClient, Request: l.request, Notified: l.noticeOfClient})
	l.modern = peer.New(peer.Options{Name: upstream, Room: room, Ready: l.readyForModern, Request: l.ignore, Notified: l.noticeOfServer,
		Invalid: func(bad *jsonrpc.InvalidError) { l.log.Debug("unusable message from upstream", "err", bad) }})
	return l.serve(ctx, client, b.Open(ctx, upstream, key, mcp.Modern))
}

// clientLeft is an end that the client's side chose.
type clientLeft struct{ error }

// serve runs the stream to its end. The first cause wins.
func (l *legacy) serve(ctx context.Context, client, modern jsonrpc.Conn) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var wg sync.WaitGroup
	wg.Go(func() { end(l.modern.Run(context.Background(), modern)) })
	wg.Go(func() { end(clientLeft{l.client.Run(context.Background(), client)}) })
	<-ctx.Done()

	err := l.endedWith(context.Cause(ctx))
	l.timers.End()
	l.stop()
	modern.Close() // whose host cancels what is open there
	if left, ok := errors.AsType[clientLeft](err); ok {
		err = left.error
	}
	l.client.Finish(err, flushTime)
	wg.Wait()
	l.modern.End(err)
	l.client.End(err)
	l.timers.Wait()
	return err
}

// endedWith returns the end that a cause is, with what the client's side needs to
// know.
func (l *legacy) endedWith(cause error) error {
	switch {
	case errors.As(cause, new(clientLeft)), errors.As(cause, new(*jsonrpc.ClosedError)):
		return cause
	case errors.Is(cause, jsonrpc.ErrClosed):
		return &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Delivered: true, Err: cause}
	}
	return &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Delivered: true, Err: cause}
}

// stop lets nothing new begin, and withdraws what the client is asked.
func (l *legacy) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for _, q := range l.client.Calls(nil) {
		q.Cancel("upstream disconnected")
	}
}

// readyForClient waits until what a message of the client causes has room, on both
// sides: neither depends on it.
func (l *legacy) readyForClient() {
	l.modern.Wait(1)
	l.client.Wait(1)
}

// readyForModern waits for the client alone: what is said to the upstream because of
// what it says, retries and listens, is bounded by the calls that are open.
func (l *legacy) readyForModern() { l.client.Wait(1) }

// ignore handles a request of the upstream: modern servers ask in results.
func (l *legacy) ignore(r *peer.Request) {
	l.log.Debug("request of a modern upstream", "method", r.Method)
	r.Respond(nil)
}

// afterLocked runs fn with mu held, d from now, unless it is stopped or the stream ends
// first. One that is stopped too late still runs: fn must look whether it is wanted.
func (l *legacy) afterLocked(d time.Duration, fn func()) *timers.Timer {
	return l.timers.After(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.ended {
			fn()
		}
	})
}

// askLocked makes a call of this side, which answered gets the answer to, with mu held.
// params must be an object without _meta.
func (l *legacy) askLocked(method string, params json.RawMessage, answered func(*jsonrpc.Message)) *peer.Call {
	c := l.modern.NewCall(method)
	c.Done = func(answer *jsonrpc.Message, lost *peer.Lost) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if lost == nil && !l.ended {
			answered(answer)
		}
	}
	text, _, err := stamped(params, l.stamp, c.ID)
	if err != nil { // it is this side that wrote them
		text = params
	}
	_ = c.Send(&jsonrpc.Message{Params: text})
	return c
}
