package upstream

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// A target is an upstream that streams attach to.
type target struct {
	name string
	up   *Upstream
	eras *eraFinder
}

// A server is a process or a remote session. Its stream calls Finish or Abort at the end,
// then Stop.
type server interface {
	// Send passes messages on, in order, and keeps none of them. It may wait, which is
	// the stream's flow control, but not after Finish or Abort. It calls accepted
	// between the wait and the passing. After Finish or Abort it drops the messages and
	// does not call accepted. Recv reports errors.
	Send(batch []*jsonrpc.Message, accepted func([]*jsonrpc.Message))

	// Recv is [jsonrpc.RecvAll]. The error at the end is a [*jsonrpc.ClosedError] with
	// the cause of the server's end.
	Recv(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error)

	// Finish passes the last messages on and begins the server's end. It calls last
	// after the last Send that passes anything on.
	Finish(last func() []*jsonrpc.Message)

	// Abort begins the end of a server that no longer reads.
	Abort()

	// Stop ends the server, by force when ctx is done. It returns when nothing is left
	// of it.
	Stop(ctx context.Context)

	// Gone reports whether nothing of the server runs any more.
	Gone() bool
}

// A stream is one Conn attached to one server of its own.
type stream struct {
	// Static after construction.
	ctx context.Context // done: the stop is forced
	target
	id     serverID
	trial  func() bool // reports whether it is still unknown that the server speaks the era; nil if it is known
	c      jsonrpc.Conn
	log    *slog.Logger
	server server
	began  time.Time
	wg     sync.WaitGroup

	// Static, set by the host.
	restart  *restart
	failures *failureLog
	quotes   bool // errors quote stderr, or the error with which initialize was refused

	ends    atomic.Bool   // end has begun
	ended   chan struct{} // closed when end is done
	gone    chan struct{} // closed by the host when nothing is left
	endOnce sync.Once
	err     error // the end; written before ended is closed

	inFlight   *inFlight
	dialled    atomic.Bool                // a remote server was reached
	startTimer atomic.Pointer[time.Timer] // set while initialize waits for its answer
	unusable   atomic.Int64               // invalid messages of the server
}

func newStream(ctx context.Context, t target, id serverID, c jsonrpc.Conn, log *slog.Logger) *stream {
	modern, together := id.era == mcp.Modern, t.up.together(id.era)
	return &stream{
		ctx: ctx, target: t, id: id, c: c, log: log, began: time.Now(), ended: make(chan struct{}), gone: make(chan struct{}),
		inFlight: newInFlight(modern, modern && together, !together && !t.up.Relates),
	}
}

// start starts the server, or takes a spare process.
func (s *stream) start(spares *spares) error {
	if s.up.Command == nil {
		s.server = newRemoteSession(s.ctx, s.dial, &s.wg)
		return nil
	}
	o := process.Options{
		Limits: spares.limits, Log: s.log, Quiet: s.onTrial,
		Failed: func(end *jsonrpc.ClosedError) { s.end(end.Cause, end) },
	}
	if p := spares.take(s.name, s.up.Command); p != nil {
		p.Assign(o)
		s.server = p
		return nil
	}
	p, err := process.Start(s.up.Command, o)
	if err != nil {
		return err
	}
	s.server = p
	return nil
}

// dial connects to a remote server in the stream's era. If the era has no first call, the
// server has then started.
func (s *stream) dial(ctx context.Context) (jsonrpc.Conn, error) {
	dial := s.up.Dial
	if s.inFlight.modern {
		dial = s.up.DialModern
	}
	if dial == nil {
		return nil, &jsonrpc.ClosedError{Cause: jsonrpc.CauseWrongEra}
	}
	c, err := dial(ctx)
	if err == nil {
		s.dialled.Store(true)
	}
	if err == nil && s.inFlight.modern && !s.inFlight.discovers {
		s.inFlight.begun()
		s.restart.answered()
	}
	return c, err
}

// onTrial reports whether it is still unknown that the server speaks this era: then its end
// is no failure.
func (s *stream) onTrial() bool { return s.trial != nil && s.trial() }

// serve begins to run the stream, whose server has just been started. At its end over is called.
func (s *stream) serve(over func(error)) {
	s.wg.Go(s.readServer)
	unhook := context.AfterFunc(s.ctx, func() { s.end(jsonrpc.CauseHostStopped, context.Cause(s.ctx)) })
	go s.readStream(func(err error) {
		s.end(jsonrpc.Cause{}, err)
		<-s.ended
		s.wg.Wait()
		s.stopStartTimer() // a timer that was set while the stream ended
		unhook()
		over(s.err)
	})
}

// readStream passes messages to the server until the stream ends, and then calls over. It owns c.Recv.
func (s *stream) readStream(over func(error)) {
	accepted := s.sent // allocated once
	jsonrpc.Receive(s.c, s.gather, func(batch []*jsonrpc.Message, end error) bool {
		if len(batch) > 0 {
			s.server.Send(batch, accepted)
		}
		if _, ok := errors.AsType[*jsonrpc.InvalidError](end); end == nil || ok { // the proxy sends no invalid ones
			return true
		}
		over(jsonrpc.Closed(end))
		return false
	})
}

// gather has an effect from fewCalls in flight to manyCalls.
const (
	fewCalls  = 4
	manyCalls = 256
)

// gather lets the goroutines run that are about to send something to the same process: lines that are written
// together wake it once. A call that is alone would only wait longer, and in a burst the queue would be full before
// the process gets anything.
func (s *stream) gather() {
	if s.up.Command == nil {
		return
	}
	if n := s.inFlight.len(); n >= fewCalls && n < manyCalls {
		runtime.Gosched()
	}
}

// sent records messages just before they are passed on, so that end clears up only what the
// server has got.
func (s *stream) sent(batch []*jsonrpc.Message) {
	for _, m := range batch {
		if s.inFlight.toServer(m) {
			s.startTimer.Store(time.AfterFunc(s.up.startTimeout(), func() { s.end(jsonrpc.CauseStartTimeout, nil) }))
		}
	}
}

// readServer passes messages from the server to the stream until the server ends, and then
// ends the stream. It reads on after the stream has ended.
func (s *stream) readServer() {
	var batch []*jsonrpc.Message
	refused := false
	for {
		var err error
		batch, err = s.server.Recv(batch[:0])
		if s.inFlight.modern {
			batch = s.withoutRequests(batch)
		}
		for _, m := range batch {
			if n := s.inFlight.fromServer(m); n != nothing {
				s.firstAnswer(n, m.Error)
				refused = n == refusal
			}
		}
		batch = s.withoutUnusable(batch)
		bad, unusable := errors.AsType[*jsonrpc.InvalidError](err)
		if unusable {
			if m := s.unusableMessage(bad); m != nil {
				batch = append(batch, m)
			}
		}
		if len(batch) > 0 {
			if err := jsonrpc.SendAll(s.c, batch); err != nil {
				s.end(jsonrpc.Cause{}, jsonrpc.Closed(err))
			}
		}
		clear(batch)
		if refused { // the proxy need not close the stream itself
			s.end(jsonrpc.CauseRefused, nil)
		}
		if err != nil && !unusable {
			s.lost(err)
			return
		}
	}
}

// withoutRequests drops requests, which no server of the modern era may send (2026-07-28
// basic/transports). They are not answered, since a client must not send responses.
func (s *stream) withoutRequests(batch []*jsonrpc.Message) []*jsonrpc.Message {
	return slices.DeleteFunc(batch, func(m *jsonrpc.Message) bool {
		if m.Batch != nil {
			m.Batch = s.withoutRequests(m.Batch)
			return len(m.Batch) == 0
		}
		if m.IsRequest() {
			s.log.Debug("modern upstream sent a request", "method", m.Method)
		}
		return m.IsRequest()
	})
}

// withoutUnusable drops the unusable elements of arrays, or puts errors in their place.
func (s *stream) withoutUnusable(batch []*jsonrpc.Message) []*jsonrpc.Message {
	return slices.DeleteFunc(batch, func(m *jsonrpc.Message) bool {
		if m.Batch == nil { // other streams of a shared server may have it, too
			return false
		}
		for i, e := range m.Batch {
			if e.Unusable != nil {
				m.Batch[i] = s.unusableMessage(e.Unusable)
			}
		}
		m.Batch = slices.DeleteFunc(m.Batch, func(e *jsonrpc.Message) bool { return e == nil })
		return len(m.Batch) == 0
	})
}

// unusableMessage handles an invalid message. If it was the reply to a call, it returns an
// error as the answer, otherwise nil.
func (s *stream) unusableMessage(bad *jsonrpc.InvalidError) *jsonrpc.Message {
	if s.unusable.Add(1) == 1 {
		s.tellStray(bad)
	}
	if !bad.Reply || bad.ID.IsZero() {
		return nil
	}
	id, ok, n := s.inFlight.settle(bad.ID)
	if !ok {
		return nil
	}
	if n != nothing {
		s.firstAnswer(n, nil)
	}
	return jsonrpc.NewError(id, jsonrpc.InvalidResponse(s.name, bad.Reason))
}

// tellStray logs the first invalid message of a server. What has no id is hardly meant as one.
func (s *stream) tellStray(bad *jsonrpc.InvalidError) {
	if s.up.Command == nil || !bad.ID.IsZero() {
		s.log.Warn("upstream sent a message that cannot be used", "err", bad)
		return
	}
	s.log.Warn("upstream wrote a line that is not a message: only MCP messages belong on stdout; log to stderr", "err", bad)
}

func (s *stream) stopStartTimer() {
	if t := s.startTimer.Swap(nil); t != nil {
		t.Stop()
	}
}

// end ends the stream. Every end passes through it, and the first one counts. The cause is
// zero if the proxy closed the stream. end returns when the stream is closed and the end
// logged. The server is stopped concurrently.
func (s *stream) end(cause jsonrpc.Cause, err error) {
	s.endOnce.Do(func() {
		defer close(s.ended)
		s.ends.Store(true)
		s.stopStartTimer()
		e := s.ending(cause, err)
		unread := e.outcome == startFailed && e.cause != jsonrpc.CauseRefused && s.unread()
		if e.outcome == intended || e.outcome == tried {
			s.server.Finish(s.inFlight.lastWords)
		} else {
			s.server.Abort()
		}
		if e.end != nil && !errors.Is(err, mcp.ErrOtherEra) { // a call may have gone to the server meanwhile
			e.end.Delivered = s.delivered()
		}
		inARow := s.restart.ended(e.outcome, e.end, e.life)
		if unread {
			s.restart.commandFailed(e.end)
		}
		if e.ofMany {
			s.restart.setEvent(e.end, s.failures.lostSession(s.name, s.log, e, inARow))
		}
		s.inFlight.lost(e.end)
		s.restart.tellEnd(e.outcome, e.end, e.life)
		event := s.tellEvent(e, inARow)
		s.wg.Go(func() { s.server.Stop(s.ctx) })
		s.err = e.err
		jsonrpc.CloseWith(s.c, e.err)
		e.tell(s.log, s.unusable.Load(), s.stderr, inARow)
		s.tellRest(event)
	})
}
