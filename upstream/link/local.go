package link

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A Local is the link between two halves in one process. It opens, refuses, closes and pushes back
// as a Client and a Server do, but no line is written or read: a stream is two bounded queues of
// messages, and it ends only when one of its sides ends it.
type Local struct {
	// Static.
	Handle Handler
	Known  func(upstream string) bool // reports, without waiting, whether there is such an upstream
	Log    *slog.Logger               // nil discards
	Linked context.Context            // its end ends all streams, as that of a link does
	Forced context.Context            // of the handlers

	limit streamLimit

	mu   sync.Mutex // guards shut, and wg.Add
	shut bool
	wg   sync.WaitGroup // of streams
}

// SetStreams bounds the open streams; zero is no bound. One more is refused at once, with
// [jsonrpc.CauseOverloaded].
func (l *Local) SetStreams(most int) { l.limit.set(most) }

// Streams returns that bound.
func (l *Local) Streams() int { return l.limit.bound() }

// Open opens a stream to an upstream, with the headers in ctx (jsonrpc.ForwardedIn). It does not
// wait. Every error is a [*jsonrpc.ClosedError] with Delivered false.
func (l *Local) Open(ctx context.Context, h Hello) (jsonrpc.Conn, error) {
	switch {
	case !l.limit.enter(l.Log, h.Upstream):
		return nil, notOpened(&jsonrpc.ClosedError{Cause: jsonrpc.CauseOverloaded, Err: errTooMany})
	case !l.Known(h.Upstream):
		l.limit.leave()
		return nil, notOpened(&jsonrpc.ClosedError{Cause: jsonrpc.CauseChanged})
	}
	near, far := localPair(l.limit.leave)
	near.unhook.Store(new(context.AfterFunc(l.Linked, func() { near.shut(errLinkEnded, errLinkEnded) })))
	forced := jsonrpc.WithForwarded(l.Forced, jsonrpc.ForwardedIn(ctx))
	if !l.enter() {
		near.Close()
		return nil, notOpened(errLinkEnded)
	}
	go l.Handle(forced, h, far, func(err error) {
		far.CloseCause(err)
		l.wg.Done()
	})
	return near, nil
}

// errLinkEnded is the end of a stream whose Local has ended.
var errLinkEnded = &jsonrpc.ClosedError{Cause: jsonrpc.CauseLinkLost, Delivered: true}

// enter adds a stream for which Wait waits. Once Wait was called it returns false.
func (l *Local) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.shut {
		l.wg.Add(1)
	}
	return !l.shut
}

// Wait refuses further streams, and waits until the others are no longer handled.
func (l *Local) Wait() {
	l.mu.Lock()
	l.shut = true
	l.mu.Unlock()
	l.wg.Wait()
}

// A localConn is one end of a stream of a Local.
type localConn struct {
	pipe *jsonrpc.PipeConn
	host bool // the host's end, whose cause the other end gets

	unhook atomic.Pointer[func() bool] // from the link, unless that has ended; nil for the host's end
	over   func()                      // called once, when it ends

	end  atomic.Pointer[jsonrpc.ClosedError] // set once, by shut
	once sync.Once
}

// localPair returns both ends of a stream. over is called when the proxy's end has ended.
func localPair(over func()) (near, far *localConn) {
	a, b := jsonrpc.Pipe()
	return &localConn{pipe: a, over: over}, &localConn{pipe: b, host: true, over: func() {}}
}

// Recv implements [jsonrpc.Conn]. The error at the end is always a [*jsonrpc.ClosedError], and Send
// fails from then on.
func (c *localConn) Recv() (*jsonrpc.Message, error) {
	if end := c.end.Load(); end != nil {
		return nil, end
	}
	m, err := c.pipe.Recv()
	return m, c.ended(err)
}

// RecvAll is [jsonrpc.RecvAll].
func (c *localConn) RecvAll(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	if end := c.end.Load(); end != nil {
		return batch, end
	}
	batch, err := c.pipe.Take(batch)
	return batch, c.ended(err)
}

// ended returns the end of c that err, an error of pipe, means.
func (c *localConn) ended(err error) error {
	if err == nil {
		return nil
	}
	end, ok := errors.AsType[*jsonrpc.ClosedError](err)
	if !ok { // this end was closed meanwhile
		end = errClosed
	}
	return c.shut(end, errClosed)
}

// Send implements [jsonrpc.Conn].
func (c *localConn) Send(m *jsonrpc.Message) error { return c.SendAll([]*jsonrpc.Message{m}) }

// SendAll is [jsonrpc.SendAll].
func (c *localConn) SendAll(messages []*jsonrpc.Message) error {
	if end := c.end.Load(); end != nil {
		return end
	}
	own := make([]*jsonrpc.Message, len(messages))
	for i, m := range messages {
		own[i] = passed(m)
	}
	return c.pipe.PutAll(own)
}

// SendNow implements [jsonrpc.Prompt].
func (c *localConn) SendNow(m jsonrpc.Queued) bool {
	if c.end.Load() != nil {
		return false
	}
	m.Message = passed(m.Message)
	return c.pipe.PutNow(m)
}

// OnSend implements [jsonrpc.Direct].
func (c *localConn) OnSend(handle func(*jsonrpc.Message) bool) { c.pipe.HandleWith(handle) }

// Rest implements [jsonrpc.Resting].
func (c *localConn) Rest(resume func()) bool {
	return c.end.Load() == nil && c.pipe.RestFor(jsonrpc.RestAfter, resume)
}

// passed returns what of m travels. The other end owns it, but shares the bytes, which nobody
// changes.
func passed(m *jsonrpc.Message) *jsonrpc.Message {
	own := &jsonrpc.Message{
		ID: m.ID, Method: m.Method, Params: m.Params, Result: m.Result, Error: m.Error, Extra: m.Extra, Related: m.Related,
	}
	if m.Forwarded != nil && m.Forwarded.To != nil {
		own.Forwarded = &jsonrpc.Forwarded{To: m.Forwarded.To}
	}
	for _, e := range m.Batch {
		own.Batch = append(own.Batch, passed(e))
	}
	return own
}

// Close implements [jsonrpc.Conn]. Messages that were sent before are still delivered.
func (c *localConn) Close() error { return c.CloseCause(nil) }

// CloseCause is [jsonrpc.CloseWith]. At the host's end the proxy receives the messages that were
// sent before, and then the [*jsonrpc.ClosedError] in cause.
func (c *localConn) CloseCause(cause error) error {
	end, ok := errors.AsType[*jsonrpc.ClosedError](cause)
	if !ok || !c.host {
		end = errClosed
	}
	told := *end // without Err, which is for the log of this side
	told.Err, told.Says = nil, shorten(end.Says)
	c.shut(end, &told)
	return nil
}

// shut ends c with end, unless it has ended, and returns the end. The other side gets told.
func (c *localConn) shut(end, told *jsonrpc.ClosedError) error {
	c.once.Do(func() {
		c.end.Store(end)
		c.pipe.CloseCause(told)
		if unhook := c.unhook.Load(); unhook != nil {
			(*unhook)()
		}
		c.over()
	})
	return c.end.Load()
}

// A streamLimit counts open streams. Its zero value has no bound.
type streamLimit struct {
	mu   sync.Mutex // guards the fields below
	most int
	open int
	full bool // a refused stream was logged
}

func (s *streamLimit) bound() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

func (s *streamLimit) set(most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = most
}

// enter counts a stream in, and returns false if there are too many.
func (s *streamLimit) enter(log *slog.Logger, upstream string) bool {
	s.mu.Lock()
	most := s.most
	ok, first := admit(s.open, most, &s.full)
	if ok {
		s.open++
	}
	s.mu.Unlock()
	if first {
		orDiscard(log).Warn("too many streams, more are refused", "most", most, "upstream", upstream)
	}
	return ok
}

func (s *streamLimit) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	s.full = s.full && s.open > s.most/2
}
