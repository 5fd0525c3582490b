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
	// maxLegacyCalls bounds the open calls of one client. Further ones are refused.
	maxLegacyCalls = 4096

	// flushTime is how long a client may take to read what is queued when its upstream
	// has ended.
	flushTime = 5 * time.Second
)

// These bound what is queued for one side. When the queue is full, legacy senders wait and
// calls of modern clients are refused.
const (
	maxQueued      = 1024
	maxQueuedBytes = 16 << 20
)

// A legacy is one legacy client's stream and the modern stream that is opened for it. It holds the legacy session:
// initialize, the log level, the subscriptions, and the calls that wait for an answer or for input. mu may be held
// while sending, and is taken when a message has arrived.
type legacy struct {
	// Static after construction.
	upstream string
	log      *slog.Logger
	client   *peer.Peer // gets answers, and the questions of calls
	modern   *peer.Peer
	timers   timers.Set

	mu        sync.Mutex // guards the fields below
	ended     bool
	hello     *hello // nil before initialize
	level     string // set by logging/setLevel
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
		Invalid: func(bad *jsonrpc.InvalidError) *jsonrpc.Message {
			l.log.Debug("unusable message from upstream", "err", bad)
			return nil
		}})
	return l
}

// A clientLeft is an end on the client's side.
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

// endedWith returns the error for a cause, with the details that the client's side needs.
func (l *legacy) endedWith(cause error) error {
	switch {
	case errors.As(cause, new(clientLeft)), errors.As(cause, new(*jsonrpc.ClosedError)):
		return cause
	case errors.Is(cause, jsonrpc.ErrClosed):
		return &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Delivered: true, Err: cause}
	}
	return &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Delivered: true, Err: cause}
}

// stop prevents new calls and cancels the open questions to the client.
func (l *legacy) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for _, q := range l.client.Calls(nil) {
		q.Cancel("upstream disconnected")
	}
}

// readyForClient waits until both queues have room for what a message of the client may cause. Neither depends on
// the client.
func (l *legacy) readyForClient(wait bool) bool {
	if !wait {
		return l.modern.Roomy(1) && l.client.Roomy(1)
	}
	l.modern.Wait(1)
	l.client.Wait(1)
	return true
}

// readyForModern waits for room towards the client alone: retries and listens that a message of the upstream
// causes are bounded by the open calls.
func (l *legacy) readyForModern(wait bool) bool {
	if !wait {
		return l.client.Roomy(1)
	}
	l.client.Wait(1)
	return true
}

// ignore answers a request of the upstream: modern servers ask in results.
func (l *legacy) ignore(r *peer.Request) {
	l.log.Debug("request of a modern upstream", "method", r.Method)
	r.Respond(nil)
}

// afterLocked runs fn after d with mu held, unless the timer is stopped or the stream ends first. If Stop comes
// too late fn still runs, so fn must check whether it is still wanted.
func (l *legacy) afterLocked(d time.Duration, fn func()) *timers.Timer {
	return l.timers.After(d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.ended {
			fn()
		}
	})
}

// askLocked makes a call of our own. answered gets the answer with mu held. params must be an object without
// _meta.
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
	if err != nil { // they are our own
		text = params
	}
	_ = c.Send(&jsonrpc.Message{Params: text})
	return c
}

// initialize sends server/discover to the upstream, whose answer becomes the answer to initialize.
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

// initializedLocked records that the client accepts notifications.
func (l *legacy) initializedLocked() {
	if l.hello != nil {
		l.hello.ready = true
		l.lists.openLocked()
	}
}

// setLevel handles logging/setLevel: all further requests carry the level.
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
		r.Respond(&jsonrpc.Message{Result: emptyObject})
	}
}

// noticeOfClient handles a notification of the client. Except for cancelled, which the Peer handles, modern
// servers know only those of extensions: they ask for roots when they need them, and do not wait for progress on a
// question.
func (l *legacy) noticeOfClient(m *jsonrpc.Message, _ *peer.Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case m.Method == mcp.MethodInitialized:
		l.initializedLocked()
	case mcp.MethodOf(m.Method).Name == "" && l.hello != nil && !l.ended:
		l.forwardNoticeLocked(m)
	}
}

// forwardNoticeLocked sends the server a notification of the client, which it drops if that names a request that is
// over.
func (l *legacy) forwardNoticeLocked(m *jsonrpc.Message) {
	notes := mcp.Read(m)
	params, hop := m.Params, reserved
	switch c, named := callNamed[*legacyCall](l.client, notes); {
	case named && (c == nil || c.sent == nil), notes.Err(mcp.InMeta, mcp.Subscription) != nil:
		return
	case named:
		params, hop = notes.Own(c.sent.ID, c.token), hopReserved
	case notes.Has(mcp.Subscription):
		hop = hopReserved
	}
	if len(params) > 0 && params[0] != '{' {
		return // notifications of MCP have none
	}
	l.modern.Send(&jsonrpc.Message{Method: m.Method, Params: mcp.SetMeta(mcp.SetMeta(params, hop...), l.hello.claim()...), Extra: m.Extra})
}

// noticeOfServer handles a notification of the upstream. of is the call that its stream names.
func (l *legacy) noticeOfServer(m *jsonrpc.Message, of *peer.Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	switch m.Method {
	case mcp.MethodProgress: // of a call that has ended
	case mcp.MethodLog:
		if l.wantsLogLocked(m) {
			l.passLocked(m, of)
		}
	case mcp.MethodAcknowledged:
		if ln := l.listenOf(m, of); ln != nil {
			ln.acknowledgedLocked(m)
		}
	case mcp.MethodToolsChanged, mcp.MethodPromptsChanged,
		mcp.MethodResourcesChanged, mcp.MethodResourceUpdated:
		if ln := l.listenOf(m, of); ln != nil && ln.acked {
			ln.by.changed(ln, m)
		}
	case mcp.MethodCancelled:
		l.cancelledByServerLocked(m)
	case mcp.MethodTask: // not declared
	default:
		l.passLocked(m, of)
	}
}

// wantsLogLocked reports whether a log message has the client's level or a higher one. Unknown levels pass.
func (l *legacy) wantsLogLocked(m *jsonrpc.Message) bool {
	level, _ := mcp.Read(m).Text(mcp.Key)
	i := slices.Index(mcp.LogLevels, level)
	return i < 0 && level != "" || i >= slices.Index(mcp.LogLevels, l.level)
}

// passLocked forwards a notification, unless the call that it names, or on whose stream it came (of), has ended.
func (l *legacy) passLocked(m *jsonrpc.Message, of *peer.Call) {
	id, named := mcp.Read(m).Named()
	if named {
		call := l.modern.Call(id)
		if !m.Related.IsZero() && call != of {
			return
		}
		of = call
	}
	if !named && m.Related.IsZero() {
		l.client.Send(&jsonrpc.Message{Method: m.Method, Params: stripReserved(m.Params), Extra: m.Extra})
		return
	}
	if of == nil || of.For == nil {
		return
	}
	c := of.For.Value.(*legacyCall)
	if params, ok := forClient(m, of.ID, c.ID, c.token); ok {
		l.client.Send(&jsonrpc.Message{Method: m.Method, Params: params, Extra: m.Extra, Related: c.ID})
	}
}

// cancelledByServerLocked handles a listen that the server ends without an answer (2026-07-28
// basic/patterns/cancellation). A server can cancel nothing else.
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
	case mcp.MethodPing: // it concerns only this hop
		r.Respond(&jsonrpc.Message{Result: emptyObject})
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
