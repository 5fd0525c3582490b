package eras

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
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

func newLegacy(upstream string, log *slog.Logger) *legacy {
	l := &legacy{upstream: upstream, log: log, level: unsaidLevel}
	l.lists.l, l.resources.l, l.resources.wanted = l, l, make(map[string]bool)
	l.lists.again.Jitter, l.resources.again.Jitter = 0.5, 0.5
	room := jsonrpc.Room{Messages: maxQueued, Bytes: maxQueuedBytes}
	l.client = peer.New(peer.Options{Name: upstream, Room: room, Ready: l.readyForClient, Request: l.request, Notified: l.noticeOfClient})
	l.modern = peer.New(peer.Options{Name: upstream, Room: room, Ready: l.readyForModern, Request: l.ignore, Notified: l.noticeOfServer,
		Invalid: func(bad *jsonrpc.InvalidError) { l.log.Debug("unusable message from upstream", "err", bad) }})
	return l
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

// initialize asks the upstream what it is, and is answered with that.
func (l *legacy) initialize(r *peer.Request) {
	h, err := readHello(r.Message.Params)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		r.Fail(jsonrpc.InvalidParams(err.Error()))
	case l.hello != nil:
		r.Fail(&jsonrpc.Error{Code: jsonrpc.CodeInvalidRequest, Message: "Invalid request: already initialized"})
	default:
		c := l.beginLocked(r)
		if c == nil {
			return
		}
		l.hello = h
		l.stamp = l.hello.stamp(l.level)
		l.askLocked(mcp.MethodDiscover, nil, func(answer *jsonrpc.Message) { l.discoveredLocked(c, answer) })
	}
}

// discoveredLocked answers initialize.
func (l *legacy) discoveredLocked(c *legacyCall, answer *jsonrpc.Message) {
	if answer.Error != nil {
		l.settleLocked(c, &jsonrpc.Message{Error: toLegacyError(mcp.MethodInitialize, answer.Error)})
		return
	}
	result, err := l.hello.welcome(l.upstream, answer.Result)
	if err != nil {
		l.log.Warn("upstream describes itself unusably", "err", err)
		c.Fail(jsonrpc.InvalidResponse(l.upstream, err.Error()))
		return
	}
	capabilities, _ := jsonrpc.Member(result, "capabilities")
	l.lists.declared = declaredChanges(capabilities)
	l.hello.greeted = true
	l.settleLocked(c, &jsonrpc.Message{Result: result})
	l.lists.openLocked()
}

// initializedLocked notes that the client takes notifications.
func (l *legacy) initializedLocked() {
	if l.hello != nil {
		l.hello.ready = true
		l.lists.openLocked()
	}
}

// setLevel handles logging/setLevel: every request says the level from now on.
func (l *legacy) setLevel(r *peer.Request) {
	n := mcp.Read(r.Message)
	level, _ := n.Text(mcp.Key)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.hello == nil:
		r.Fail(errNotInitialized)
	case n.Err(mcp.Key) != nil || !slices.Contains(mcp.LogLevels, level):
		r.Fail(jsonrpc.InvalidParams(`"level" is not a log level`))
	default:
		l.level = level
		l.stamp = l.hello.stamp(l.level)
		r.Respond(&jsonrpc.Message{Result: noResult})
	}
}

// noticeOfClient handles a notification of the client. The modern era knows one from
// clients, cancelled, and so all others stay here: roots are asked for when they are
// needed, and nobody waits for progress on a question.
func (l *legacy) noticeOfClient(m *jsonrpc.Message, _ *peer.Call) {
	if m.Method == mcp.MethodInitialized {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.initializedLocked()
	}
}

// noticeOfServer handles a notification of the upstream, of being the call that its stream
// names.
func (l *legacy) noticeOfServer(m *jsonrpc.Message, of *peer.Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	switch m.Method {
	case mcp.MethodProgress: // of nothing that is open
	case mcp.MethodLog:
		if l.wantsToHearLocked(m) {
			l.passLocked(m, of)
		}
	case mcp.MethodAcknowledged:
		if ln := l.listenOf(m, of); ln != nil {
			ln.acknowledgedLocked(m)
		}
	case mcp.MethodToolsChanged, mcp.MethodPromptsChanged,
		mcp.MethodResourcesChanged, mcp.MethodResourceUpdated:
		if ln := l.listenOf(m, of); ln != nil && ln.acked {
			ln.by.told(ln, m)
		}
	case mcp.MethodCancelled:
		l.cancelledByServerLocked(m)
	case mcp.MethodTask: // nobody declared them
	default:
		l.passLocked(m, of)
	}
}

// wantsToHearLocked reports whether a log message is of the client's level or above. A
// level that nobody knows may be.
func (l *legacy) wantsToHearLocked(m *jsonrpc.Message) bool {
	level, _ := mcp.Read(m).Text(mcp.Key)
	i := slices.Index(mcp.LogLevels, level)
	return i < 0 && level != "" || i >= slices.Index(mcp.LogLevels, l.level)
}

// passLocked passes a notification on, unless the call that it belongs to is settled.
func (l *legacy) passLocked(m *jsonrpc.Message, of *peer.Call) {
	var related jsonrpc.ID
	if !m.Related.IsZero() {
		if of == nil || of.For == nil {
			return
		}
		related = of.For.ID
	}
	l.client.Send(&jsonrpc.Message{Method: m.Method, Params: StripReserved(m.Params), Extra: m.Extra, Related: related})
}

// cancelledByServerLocked handles the end of a listen that the server does not answer
// (2026-07-28 basic/patterns/cancellation). It can cancel nothing else.
func (l *legacy) cancelledByServerLocked(m *jsonrpc.Message) {
	id, _ := mcp.Read(m).ID(mcp.Key)
	c := l.modern.Call(id)
	if c == nil {
		return
	}
	if ln, ok := c.Value.(*listen); ok && c.Take() {
		ln.by.ended(ln, nil)
	}
}

// request handles a request of the client.
func (l *legacy) request(r *peer.Request) {
	switch r.Method {
	case mcp.MethodInitialize:
		l.initialize(r)
	case mcp.MethodPing: // is about this hop alone
		r.Respond(&jsonrpc.Message{Result: noResult})
	case mcp.MethodSetLevel:
		l.setLevel(r)
	case mcp.MethodSubscribe, mcp.MethodUnsubscribe:
		l.subscription(r)
	default:
		if mcp.MethodOf(r.Method).Foreign() {
			r.Fail(&jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "Method not found"})
			return
		}
		l.forward(r)
	}
}
