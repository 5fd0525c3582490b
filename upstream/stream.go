package upstream

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// Causes of an end, as the error that clients see has them. Beside these stand
// those of an exit: "exit status 3", "signal: killed".
const (
	causeStartFailed  = "start failed"
	causeStartTimeout = "start timeout"
	causeRefused      = "initialize refused"
	causeWriteTimeout = "write timeout"
	causeStdinClosed  = "stdin closed"
	causeStdoutClosed = "stdout closed"
	causeHostStopped  = "host stopped"
)

// maxAtOnce bounds how many messages from a process are passed on together.
const maxAtOnce = 64

// keptBuffer is what an idle stream keeps of the buffer of its longest line.
const keptBuffer = 4 << 10

// A stream is one Conn attached to one process of its own.
type stream struct {
	// Static after construction.
	ctx      context.Context // done: the stop is forced. It bounds the stream's life
	host     *Host
	claim    *claim
	upstream string
	up       *Upstream
	c        jsonrpc.Conn
	log      *slog.Logger
	p        *process
	stderr   stderrLog
	wg       sync.WaitGroup

	stderrEnd chan struct{} // closed by readStderr
	ended     chan struct{} // closed by end, after everything that it does
	endOnce   sync.Once
	err       error // the end; written before ended is closed

	flight   flight
	start    atomic.Pointer[time.Timer] // while initialize waits for its answer
	unusable atomic.Int64               // lines of stdout that were no message
}

// serve runs the stream to its end. p has just been started.
func (s *stream) serve() error {
	s.wg.Go(s.p.watch)
	s.wg.Go(s.readStdout)
	s.wg.Go(s.readStderr)
	unhook := context.AfterFunc(s.ctx, func() { s.end(causeHostStopped, context.Cause(s.ctx)) })
	defer unhook()

	s.end("", s.readStream())
	<-s.ended
	s.wg.Wait()
	s.stopStartTimer() // a timer that was set while the stream ended
	return s.err
}

// readStream brings messages to the process until the stream ends. It owns Recv.
func (s *stream) readStream() error {
	var batch []*jsonrpc.Message
	var lines []byte
	for {
		var end error
		batch, end = jsonrpc.RecvAll(s.c, batch[:0])
		for _, m := range batch {
			if s.flight.down(m) {
				s.start.Store(time.AfterFunc(s.up.startTimeout(), func() { s.end(causeStartTimeout, nil) }))
			}
			lines = append(m.Append(lines), '\n')
		}
		clear(batch)
		if err := s.p.stdin.write(lines); err != nil {
			s.wg.Go(func() { s.stdinFailed(err) })
		}
		if lines = lines[:0]; cap(lines) > keptBuffer {
			lines = nil
		}
		if _, ok := errors.AsType[*jsonrpc.InvalidError](end); end != nil && !ok { // the proxy sends no invalid ones
			return jsonrpc.Closed(end)
		}
	}
}

// readStdout brings messages from the process until its output ends, which is
// the end of the stream. It goes on reading when nobody listens any more: a
// server must not be held up on its way out.
func (s *stream) readStdout() {
	defer s.p.stdout.Close()
	lines := jsonrpc.NewLineReader(s.p.stdout, s.host.Limits)
	var batch []*jsonrpc.Message
	for {
		m, err := lines.Read()
		if bad, ok := errors.AsType[*jsonrpc.InvalidError](err); ok {
			m = s.unusableLine(bad)
		} else if err != nil {
			break
		} else if s.flight.up(m) {
			s.stopStartTimer()
		}
		if m != nil {
			batch = append(batch, m)
		}
		if lines.Buffered() && len(batch) < maxAtOnce {
			continue // what came together goes on together
		}
		if err := jsonrpc.SendAll(s.c, batch); err != nil {
			s.end("", jsonrpc.Closed(err))
		}
		clear(batch)
		batch = batch[:0]
	}
	jsonrpc.SendAll(s.c, batch) // before an end that came with them
	close(s.p.drained)
	select {
	case <-s.p.gone:
		s.end(s.p.cause(), nil)
	case <-time.After(lull):
		s.end(causeStdoutClosed, nil)
	}
}

// unusableLine copes with a line that is no message: the answer to what waits
// for it, if that can still be told, else nil.
func (s *stream) unusableLine(bad *jsonrpc.InvalidError) *jsonrpc.Message {
	if s.unusable.Add(1) == 1 {
		s.log.Warn("upstream wrote a line that is not a message", "err", bad)
	}
	if !bad.Reply || bad.ID.IsZero() {
		return nil
	}
	id, ok, first := s.flight.settle(bad.ID)
	if !ok {
		return nil
	}
	if first {
		s.stopStartTimer()
	}
	return jsonrpc.NewError(id, jsonrpc.InvalidResponse(s.upstream, bad.Reason))
}

func (s *stream) stopStartTimer() {
	if t := s.start.Swap(nil); t != nil {
		t.Stop()
	}
}

func (s *stream) readStderr() {
	defer close(s.stderrEnd)
	defer s.p.stderr.Close()
	s.stderr.readFrom(s.p.stderr)
}

// stdinFailed ends the stream because the process cannot be written to. A pipe
// breaks when a process exits, too; then readStdout knows the true cause.
func (s *stream) stdinFailed(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.end(causeWriteTimeout, nil)
		return
	}
	select {
	case <-s.p.exited:
	case <-s.ended:
	case <-time.After(lull):
		s.end(causeStdinClosed, err)
	}
}

// end is the one place through which every end passes; the first one counts. The
// cause is "" when the proxy closed the stream. end returns when the stream is
// closed and the log says why; the process is stopped meanwhile.
func (s *stream) end(cause string, err error) {
	s.endOnce.Do(func() {
		defer close(s.ended)
		s.stopStartTimer()
		e := s.ending(cause, err)
		inARow := s.host.ended(s.claim, e.outcome, e.life)
		if e.outcome == intended {
			s.p.stdin.finish(s.flight.farewell())
		} else {
			s.p.stdin.abort()
		}
		s.wg.Go(func() { s.p.stop(s.ctx) })
		s.err = e.err
		jsonrpc.CloseWith(s.c, e.err)
		s.tell(e, inARow)
	})
}

// An ending is what there is to say about the end of a stream.
type ending struct {
	outcome  outcome
	err      error  // for the proxy
	cause    string // of the process's end, for the log
	inFlight int
	life     time.Duration
}

func (s *stream) ending(cause string, err error) ending {
	inFlight, sent, answered, refused := s.flight.state()
	e := ending{err: err, cause: cause, inFlight: inFlight, life: time.Since(s.p.started)}
	closed := &jsonrpc.ClosedError{Cause: cause, Delivered: sent || answered, Err: err}
	switch {
	case cause == "" && refused: // and so the proxy hung up
		e.outcome, e.cause = startFailed, causeRefused
		return e
	case cause == "":
		return e
	case cause == causeHostStopped:
	case answered:
		e.outcome = died
	default:
		e.outcome = startFailed
		if !sent && cause != causeStartTimeout {
			closed.Cause = causeStartFailed
		}
	}
	e.err = closed
	return e
}

// tell writes the one log line of an end.
func (s *stream) tell(e ending, inARow int) {
	log := s.log.With("cause", cmp.Or(e.cause, jsonrpc.CauseOf(e.err)), "in_flight", e.inFlight, "dur", e.life)
	if n := s.unusable.Load(); n > 0 {
		log = log.With("unusable", n)
	}
	if e.outcome == intended {
		log.Debug("upstream stopped")
		return
	}
	select { // the last lines are the ones that matter
	case <-s.stderrEnd:
	case <-time.After(lull):
	}
	log = log.With("stderr", strings.Join(s.stderr.tail(), "\n"))
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
