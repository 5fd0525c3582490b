package upstream

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/pool"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// Causes of an end, as the error that clients see has them. Beside these stand
// those of a process: "exit status 3", "signal: killed", "stdout closed".
const (
	causeStartFailed  = process.CauseStartFailed
	causeStartTimeout = "start timeout"
	causeRefused      = "initialize refused"
	causeHostStopped  = "host stopped"
	causeChanged      = "upstream changed"
	causeLost         = "connection lost" // of a remote server that does not say more
	causeWrongEra     = "wrong era"       // and nobody translates
)

// A stream is one Conn attached to one server of its own.
type stream struct {
	// Static after construction.
	ctx   context.Context // done: the stop is forced. It bounds the stream's life
	host  *Host
	claim *claim
	attachment
	c      jsonrpc.Conn
	log    *slog.Logger
	server server
	began  time.Time
	wg     sync.WaitGroup

	ends    atomic.Bool   // end has begun
	ended   chan struct{} // closed by end, after everything that it does
	endOnce sync.Once
	err     error // the end; written before ended is closed

	dialled    atomic.Bool // a remote server was reached
	flight     flight
	startTimer atomic.Pointer[time.Timer] // while initialize waits for its answer
	unusable   atomic.Int64               // messages of the server that were none
}

func newStream(ctx context.Context, h *Host, cl *claim, a attachment, c jsonrpc.Conn, log *slog.Logger) *stream {
	s := &stream{ctx: ctx, host: h, claim: cl, attachment: a, c: c, log: log, began: time.Now(), ended: make(chan struct{})}
	together := a.up.together(a.id.era)
	s.flight.modern, s.flight.discovers = a.id.era == mcp.Modern, a.id.era == mcp.Modern && together
	s.flight.guess = !s.flight.modern && !together && !a.up.Relates
	return s
}

// start starts the server. The error is the end of one that never was.
func (s *stream) start() error {
	if s.up.Command == nil {
		s.server = newRemote(s.ctx, s.dial, &s.wg)
		return nil
	}
	p, err := process.Start(s.up.Command, process.Options{
		Limits: s.host.Limits, Log: s.log, Quiet: s.onTrial,
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
	r, ok := s.server.(*remote)
	return ok && r.sessionless()
}

// lastWords returns the last lines that a process wrote to stderr before it ended.
func (s *stream) lastWords() []string {
	p, ok := s.server.(*process.Server)
	if !ok {
		return nil
	}
	return p.LastWords()
}

// dial reaches a remote server in the stream's era. Where that has no first call, a
// Conn is all that there is to start.
func (s *stream) dial(ctx context.Context) (jsonrpc.Conn, error) {
	dial := s.up.Dial
	if s.flight.modern {
		dial = s.up.DialModern
	}
	if dial == nil {
		return nil, &jsonrpc.ClosedError{Cause: causeWrongEra}
	}
	c, err := dial(ctx)
	if err == nil {
		s.dialled.Store(true)
	}
	if err == nil && s.flight.modern && !s.flight.discovers {
		s.flight.begun()
	}
	return c, err
}

// onTrial reports whether nobody knows yet that the server speaks this era, so
// that its end would be no failure.
func (s *stream) onTrial() bool { return s.trial != nil && s.trial() }

// serve runs the stream to its end. Its server has just been started.
func (s *stream) serve() error {
	s.wg.Go(s.readServer)
	unhook := context.AfterFunc(s.ctx, func() { s.end(causeHostStopped, context.Cause(s.ctx)) })
	defer unhook()

	s.end("", s.readStream())
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

// sent notes messages that are being passed on: neither farewell nor anybody else
// speaks of them before, and all that end knows of has been passed on.
func (s *stream) sent(batch []*jsonrpc.Message) {
	for _, m := range batch {
		if s.flight.down(m) {
			s.startTimer.Store(time.AfterFunc(s.up.startTimeout(), func() { s.end(causeStartTimeout, nil) }))
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
		if s.flight.modern {
			batch = s.withoutRequests(batch)
		}
		for _, m := range batch {
			if n := s.flight.up(m); n != nothing {
				s.heardFirst(n)
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
				s.end("", jsonrpc.Closed(err))
			}
		}
		clear(batch)
		if refused { // nothing can be asked of it, and the proxy need not find an end for that
			s.end(causeRefused, nil)
		}
		if err != nil && !unusable {
			s.lost(err)
			return
		}
	}
}

// heardFirst acts on the answer that tells whether the server speaks this era.
func (s *stream) heardFirst(n news) {
	switch n {
	case refusal:
		if s.otherEra() { // before the client hears of the refusal
			s.end(jsonrpc.CauseOtherEra, nil)
		}
		s.flight.refuse()
		return
	case greeting:
		if s.sessionless() && s.otherEra() { // it could ask nothing, and tell nothing by itself
			s.end(jsonrpc.CauseOtherEra, nil)
			return
		}
		s.eras.greeted()
	}
	s.stopStartTimer()
}

// otherEra reports whether a server that took no initialize, or began no session
// with it, speaks the modern era. It may take as long as a probe.
func (s *stream) otherEra() bool {
	if s.ends.Load() || s.id.era == mcp.Modern || s.up.only() != "" || s.eras.both() {
		return false
	}
	s.eras.doubt()
	modern, err := s.host.speaksModern(s.ended, s.target)
	if err != nil {
		return false
	}
	if s.eras.snubbed(modern) {
		s.log.Info("upstream is spoken to in the modern era only")
	}
	return modern
}

// snubbed reports whether a server that was there ended without an answer to
// initialize.
func (s *stream) snubbed() bool {
	return (s.up.Command != nil || s.dialled.Load()) && s.flight.snubbed()
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
	if s.snubbed() && s.otherEra() {
		s.end(jsonrpc.CauseOtherEra, nil)
		return
	}
	end := jsonrpc.EndOf(err, causeLost)
	if end.Cause == jsonrpc.CauseOtherEra {
		s.eras.forget()
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
	id, ok, n := s.flight.settle(bad.ID)
	if !ok {
		return nil
	}
	if n != nothing {
		s.heardFirst(n)
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
func (s *stream) end(cause string, err error) {
	s.endOnce.Do(func() {
		defer close(s.ended)
		s.ends.Store(true)
		s.stopStartTimer()
		e := s.ending(cause, err)
		inARow := s.host.ended(s.claim, e.outcome, e.end, e.life)
		if s.isOneOfMany(e) {
			s.host.losesSession(s, e, inARow)
		}
		if e.outcome == intended || e.outcome == tried {
			s.server.Finish(s.flight.farewell)
		} else {
			s.server.Abort()
		}
		s.wg.Go(func() { s.server.Stop(s.ctx) })
		s.err = e.err
		jsonrpc.CloseWith(s.c, e.err)
		s.tell(e, inARow)
	})
}

// An ending is what there is to say about the end of a stream.
type ending struct {
	outcome  outcome
	err      error                // for the proxy
	end      *jsonrpc.ClosedError // that is for the claim; nil if the proxy chose it
	cause    string               // of the server's end, for the log
	inFlight int
	life     time.Duration
}

func (s *stream) ending(cause string, err error) ending {
	inFlight, sent, answered, refused := s.flight.state()
	if cause == "" && refused { // and so the proxy hung up
		cause = causeRefused
	}
	e := ending{err: err, cause: cause, inFlight: inFlight, life: time.Since(s.began)}
	if cause == "" {
		return e
	}
	closed := &jsonrpc.ClosedError{Err: err}
	if cause != causeRefused {
		closed = jsonrpc.EndOf(err, "") // which knows more of a server's own end
	}
	closed.Cause, closed.Delivered = cause, answered || sent && !s.flight.modern
	closed.Event = cmp.Or(closed.Event, jsonrpc.NewEvent())
	e.err, e.end = closed, closed
	switch {
	case cause == causeHostStopped, cause == causeChanged:
	case cause == jsonrpc.CauseOtherEra: // a legacy server has refused initialize, a modern one was replaced
		e.outcome, closed.Delivered = tried, s.id.era == mcp.Modern
	case s.onTrial():
		e.outcome, closed.Err = tried, pool.ErrTried
	case answered:
		e.outcome = died
	default:
		e.outcome = startFailed
		s.didNotStart(closed, sent)
	}
	return e
}

// didNotStart makes an end that of a server which never was there.
func (s *stream) didNotStart(end *jsonrpc.ClosedError, sent bool) {
	cause := end.Cause
	end.Lasting = end.Lasting || cause == causeRefused
	if s.up.Command == nil || cause == causeRefused {
		return
	}
	end.Says = "did not start in time"
	if cause != causeStartTimeout {
		end.Says = "did not start: " + cause
	}
	if s.host.ClientsOperate {
		end.Says = withLast(end.Says, s.lastWords())
	}
	if !sent && cause != causeStartTimeout {
		end.Cause = causeStartFailed
	}
}

// maxQuoted is how much of a line of stderr the message of an error may have, in bytes.
const maxQuoted = 200

// withLast adds the last of lines to a text, as far as it can be printed.
func withLast(text string, lines []string) string {
	if len(lines) == 0 {
		return text
	}
	line := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, lines[len(lines)-1])
	n := min(len(line), maxQuoted)
	for n < len(line) && !utf8.RuneStart(line[n]) {
		n--
	}
	if n == 0 {
		return text
	}
	return text + ": " + line[:n]
}

// tell writes the one log line of an end.
func (s *stream) tell(e ending, inARow int) {
	log := s.log.With("cause", cmp.Or(e.cause, jsonrpc.CauseOf(e.err)), "in_flight", e.inFlight, "dur", e.life)
	if e.end != nil {
		log = log.With("event", e.end.Event)
	}
	if n := s.unusable.Load(); n > 0 {
		log = log.With("unusable", n)
	}
	if e.outcome == intended || e.outcome == tried {
		log.Debug("upstream stopped")
		return
	}
	if end := errors.Unwrap(e.err); end != nil {
		log = log.With("err", end)
	}
	if s.isOneOfMany(e) {
		log.Debug("session with the upstream lost")
		return
	}
	if s.up.Command == nil && e.end != nil && e.end.Says != "" {
		log = log.With("why", e.end.Says)
	}
	if lines := s.lastWords(); lines != nil {
		log = log.With("stderr", strings.Join(lines, "\n"))
	}
	tellFailure(log, e.outcome, inARow)
}

// tellFailure says once that a claim is in a crash loop, and from then on is
// quiet about each round of it.
func tellFailure(log *slog.Logger, how outcome, inARow int) {
	switch {
	case inARow > crashLoop:
		log.Debug("upstream is still in a crash loop", "failures", inARow)
	case inARow == crashLoop:
		log.Warn("upstream is in a crash loop", "failures", inARow)
	case how == startFailed:
		log.Warn("upstream failed to start")
	default:
		log.Warn("upstream ended unexpectedly")
	}
}
