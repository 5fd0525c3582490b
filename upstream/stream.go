package upstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
	"github.com/mcp-proxy/mcp-proxy/upstream/shared"
)

// A target is what a stream is to be attached to.
type target struct {
	name string
	up   *Upstream
	eras *eraFinder
}

// An attachment is what a stream with a server of its own is attached to.
type attachment struct {
	target
	id    serverID
	trial func() bool // reports whether it is still open that the server speaks the era; nil: it is not
}

// A server is a process or a remote session, to which a stream passes messages. Whoever
// makes one calls Finish or Abort in the end, then Stop.
type server interface {
	// Send passes messages on, in order, and keeps none of them. It may wait,
	// which is the stream's flow control, but not after Finish or Abort. What
	// goes wrong is told by Recv or as a failure of the server. Between the wait
	// and the passing it calls accepted, unless Finish or Abort was called: then
	// the messages are dropped.
	Send(batch []*jsonrpc.Message, accepted func([]*jsonrpc.Message))

	// Recv is [jsonrpc.RecvAll]. Its end is a [*jsonrpc.ClosedError] with the
	// cause of the server's end.
	Recv(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error)

	// Finish passes the last messages on and begins the server's end. last is
	// called when no Send will pass anything any more.
	Finish(last func() []*jsonrpc.Message)

	// Abort begins the end of a server that listens no more.
	Abort()

	// Stop makes the server end, by force when ctx is done. It returns when
	// nothing is left of it.
	Stop(ctx context.Context)

	// Gone reports whether nothing runs there any more.
	Gone() bool
}

// A stream is one Conn attached to one server of its own.
type stream struct {
	// Static after construction.
	ctx context.Context // done: the stop is forced. It bounds the stream's life
	attachment
	c      jsonrpc.Conn
	log    *slog.Logger
	server server
	began  time.Time
	wg     sync.WaitGroup

	// Static: the host's.
	restart  *restart
	failures *failureLog
	limits   jsonrpc.Limits // of one message from the server
	quotes   bool           // the error about a process that did not start has its last line on stderr

	ends    atomic.Bool   // end has begun
	ended   chan struct{} // closed by end, after everything that it does
	endOnce sync.Once
	err     error // the end; written before ended is closed

	inFlight   *inFlight
	dialled    atomic.Bool                // a remote server was reached
	startTimer atomic.Pointer[time.Timer] // while initialize waits for its answer
	unusable   atomic.Int64               // messages of the server that were none
}

func newStream(ctx context.Context, a attachment, c jsonrpc.Conn, log *slog.Logger) *stream {
	modern, together := a.id.era == mcp.Modern, a.up.together(a.id.era)
	return &stream{
		ctx: ctx, attachment: a, c: c, log: log, began: time.Now(), ended: make(chan struct{}),
		inFlight: newInFlight(modern, modern && together, !modern && !together && !a.up.Relates),
	}
}

// start starts the server. The error is the end of one that never was.
func (s *stream) start() error {
	if s.up.Command == nil {
		s.server = newRemoteSession(s.ctx, s.dial, &s.wg)
		return nil
	}
	p, err := process.Start(s.up.Command, process.Options{
		Limits: s.limits, Log: s.log, Quiet: s.onTrial,
		Failed: func(end *jsonrpc.ClosedError) { s.end(end.Cause, end) },
	})
	if err != nil {
		return err
	}
	s.server = p
	return nil
}

// sessionless reports, once initialize is answered, whether the server began no
// session. A process always is one.
func (s *stream) sessionless() bool {
	r, ok := s.server.(*remoteSession)
	return ok && r.sessionless()
}

// dial reaches a remote server in the stream's era. Where that has no first call, a
// Conn is all that there is to start.
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

// onTrial reports whether nobody knows yet that the server speaks this era, so
// that its end would be no failure.
func (s *stream) onTrial() bool { return s.trial != nil && s.trial() }

// serve runs the stream to its end. Its server has just been started.
func (s *stream) serve() error {
	s.wg.Go(s.readServer)
	unhook := context.AfterFunc(s.ctx, func() { s.end(jsonrpc.CauseHostStopped, context.Cause(s.ctx)) })
	defer unhook()

	s.end(jsonrpc.Cause{}, s.readStream())
	<-s.ended
	s.wg.Wait()
	s.stopStartTimer() // a timer that was set while the stream ended
	return s.err
}

// readStream brings messages to the server until the stream ends. It owns Recv.
func (s *stream) readStream() error {
	var batch []*jsonrpc.Message
	accepted := s.sent // made once
	for {
		var end error
		batch, end = jsonrpc.RecvAll(s.c, batch[:0])
		if len(batch) > 0 {
			s.server.Send(batch, accepted)
		}
		clear(batch)
		if _, ok := errors.AsType[*jsonrpc.InvalidError](end); end != nil && !ok { // the proxy sends no invalid ones
			return jsonrpc.Closed(end)
		}
	}
}

// sent notes messages that are being passed on: neither the last words nor anybody else
// speaks of them before, and all that end knows of has been passed on.
func (s *stream) sent(batch []*jsonrpc.Message) {
	for _, m := range batch {
		if s.inFlight.toServer(m) {
			s.startTimer.Store(time.AfterFunc(s.up.startTimeout(), func() { s.end(jsonrpc.CauseStartTimeout, nil) }))
		}
	}
}

// readServer brings messages from the server until there are no more, which is
// the end of the stream. It goes on when nobody listens any more.
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
				s.heardFirst(n, m.Error)
				refused = n == refusal
			}
		}
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
		if refused { // nothing can be asked of it, and the proxy need not find an end for that
			s.end(jsonrpc.CauseRefused, nil)
		}
		if err != nil && !unusable {
			s.lost(err)
			return
		}
	}
}

// heardFirst acts on the answer that tells whether the server speaks this era, and on the
// error that it is.
func (s *stream) heardFirst(n startSign, failed json.RawMessage) {
	switch n {
	case refusal:
		if s.otherEra() { // before the client hears of the refusal
			s.endOtherEra()
		}
		s.inFlight.refuse(failed)
		return
	case greeting:
		if s.sessionless() && s.otherEra() { // it could ask nothing, and tell nothing by itself
			s.endOtherEra()
			return
		}
		s.eras.initialized()
	}
	s.stopStartTimer()
	s.restart.answered()
}

// endOtherEra ends the stream since its server speaks the other era.
func (s *stream) endOtherEra() { s.end(jsonrpc.CauseStartFailed, mcp.ErrOtherEra) }

// otherEra reports whether a server that took no initialize, or began no session
// with it, speaks the modern era. It may take as long as a probe.
func (s *stream) otherEra() bool {
	if s.ends.Load() || s.inFlight.modern {
		return false
	}
	modern, news := s.eras.notInitialized(s.ended)
	if news {
		s.log.Info("upstream is used only in the modern era")
	}
	return modern
}

// hangsUp reports whether a server that was there ended without an answer to
// initialize.
func (s *stream) hangsUp() bool {
	return (s.up.Command != nil || s.dialled.Load()) && s.inFlight.awaitsInitialize()
}

// withoutRequests takes out what no server of the modern era may send (2026-07-28
// basic/transports). It is not answered: a client may not do that either.
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

// lost ends the stream because its server has ended.
func (s *stream) lost(err error) {
	end := jsonrpc.EndOf(err, jsonrpc.CauseConnectionLost)
	if end.Cause.Kind != jsonrpc.KindLogin && s.hangsUp() && s.otherEra() { // it says nothing of eras to who is not logged in
		s.endOtherEra()
		return
	}
	if errors.Is(end, mcp.ErrOtherEra) {
		s.eras.misread()
	}
	s.end(end.Cause, end)
}

// unusableMessage copes with what is no message: the answer to what waits for it,
// if that can still be told, else nil.
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
		s.heardFirst(n, nil)
	}
	return jsonrpc.NewError(id, jsonrpc.InvalidResponse(s.name, bad.Reason))
}

// tellStray says once that a server sends what is no message, and what it should do.
func (s *stream) tellStray(bad *jsonrpc.InvalidError) {
	if s.up.Command == nil {
		s.log.Warn("upstream sent something that is not a message", "err", bad)
		return
	}
	s.log.Warn("upstream wrote a line that is not a message: only MCP messages belong on stdout; log to stderr", "err", bad)
}

func (s *stream) stopStartTimer() {
	if t := s.startTimer.Swap(nil); t != nil {
		t.Stop()
	}
}

// end is the one place through which every end passes; the first one counts. The
// cause is "" when the proxy closed the stream. end returns when the stream is
// closed and the log says why; the server is stopped meanwhile.
func (s *stream) end(cause jsonrpc.Cause, err error) {
	s.endOnce.Do(func() {
		defer close(s.ended)
		s.ends.Store(true)
		s.stopStartTimer()
		e := s.ending(cause, err)
		inARow := s.restart.ended(e.outcome, e.end, e.life)
		if e.outcome == startFailed && e.cause != jsonrpc.CauseRefused && s.unread() {
			s.restart.commandFailed(e.end)
		}
		if e.ofMany {
			s.restart.setEvent(e.end, s.failures.lostSession(s.name, s.log, e, inARow))
		}
		s.inFlight.lost(e.end)
		s.restart.tellEnd(e.outcome, e.end, e.life)
		event := s.tellEvent(e, inARow)
		if e.outcome == intended || e.outcome == tried {
			s.server.Finish(s.inFlight.lastWords)
		} else {
			s.server.Abort()
		}
		s.wg.Go(func() { s.server.Stop(s.ctx) })
		s.err = e.err
		jsonrpc.CloseWith(s.c, e.err)
		e.tell(s.log, s.unusable.Load(), s.stderr, inARow)
		s.tellRest(event)
	})
}

// unread reports whether a process has surely read nothing of a client's: nothing at all, or what
// this side says to a shared server, or in a trial, until that answers.
func (s *stream) unread() bool {
	p, ok := s.server.(*process.Server)
	return ok && (s.id.key == sharedKey || mcp.HolderOf(s.id.key).Who == "" || p.Unread())
}

// ending decides what an end means.
func (s *stream) ending(cause jsonrpc.Cause, err error) ending {
	inFlight, start := s.inFlight.state()
	if cause.IsZero() && start.refused { // and so the proxy hung up
		cause = jsonrpc.CauseRefused
	}
	e := ending{err: err, cause: cause, inFlight: inFlight, life: time.Since(s.began), remote: s.up.Command == nil}
	if cause.IsZero() {
		return e
	}
	closed := &jsonrpc.ClosedError{Err: err}
	if cause != jsonrpc.CauseRefused {
		closed = jsonrpc.EndOf(err, cause) // which knows more of a server's own end
	}
	closed.Cause, closed.Delivered = cause, start.answered || start.sent && !s.inFlight.modern
	closed.Event = cmp.Or(closed.Event, jsonrpc.NewEvent())
	e.err, e.end = closed, closed
	switch class := closed.Cause.Kind; {
	case class == jsonrpc.KindStopped, class == jsonrpc.KindChanged:
	case errors.Is(err, mcp.ErrOtherEra): // a legacy server has refused initialize, a modern one was replaced
		e.outcome, closed.Delivered = tried, s.inFlight.modern
	case s.onTrial():
		e.outcome, closed.Err = tried, shared.ErrTried
	case start.answered:
		e.outcome, e.ofMany = died, e.remote && !s.up.together(s.id.era)
	default:
		e.outcome = startFailed
		e.didNotStart(start.sent)
		switch {
		case !s.quotes:
		case cause == jsonrpc.CauseRefused:
			closed.Says = withRefusal(closed.Words(), start.refusal)
		case !e.remote:
			closed.Says = withLast(closed.Says, s.stderr())
		}
	}
	return e
}

// stderr returns the last lines that a process wrote to stderr before it ended.
func (s *stream) stderr() []string {
	p, ok := s.server.(*process.Server)
	if !ok {
		return nil
	}
	return p.LastWords()
}

// addStatus implements reporter.
func (s *stream) addStatus(st *Status) {
	inFlight, start := s.inFlight.state()
	st.InFlight, st.Unusable, st.Started = inFlight, int(s.unusable.Load()), s.began
	if p, ok := s.server.(*process.Server); ok {
		st.PID, st.Started, st.Stderr = p.PID(), p.Started(), p.Stderr()
	}
	switch {
	case s.server.Gone():
	case s.ends.Load():
		st.State = StateStopping
	case start.answered:
		st.State = StateRunning
	default:
		st.State = StateStarting
	}
}
