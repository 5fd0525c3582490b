package process

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// maxAtOnce bounds how many messages from a process are returned together.
const maxAtOnce = 64

// keptBuffer is what an idle server keeps of the buffer of its longest line.
const keptBuffer = 4 << 10

// Options are what a server needs to know besides its command.
type Options struct {
	Limits jsonrpc.Limits // of one message
	Log    *slog.Logger   // gets what the process writes to stderr

	// Quiet reports whether what the process writes to stderr is of no interest
	// now. It is logged at the level of debug then.
	Quiet func() bool

	// Failed is told, once at most and from a goroutine of its own, that the
	// process cannot be written to while it runs. It must not wait for Stop.
	Failed func(end *jsonrpc.ClosedError)
}

// A Server is one process that speaks MCP on its stdin and stdout. Whoever starts
// one calls Recv until it fails, and in the end Finish or Abort, then Stop. Send
// and Recv are for one goroutine each.
type Server struct {
	// Static after construction.
	p      *process
	stderr stderrLog
	failed func(*jsonrpc.ClosedError)
	wg     sync.WaitGroup // watch, readStderr, stdin's drain, and what tells its failure

	stderrEnd chan struct{} // closed by readStderr

	lines *jsonrpc.LineReader // owned by Recv
	text  []byte              // owned by Send
}

// Start starts a server. The error is a [*jsonrpc.ClosedError], which says what to
// do about it.
func Start(c *Command, o Options) (*Server, error) {
	s := &Server{
		stderr: stderrLog{log: o.Log, quiet: o.Quiet}, failed: o.Failed, stderrEnd: make(chan struct{}),
	}
	p, err := startProcess(c, &s.wg, s.stdinFailed)
	if err != nil {
		return nil, notStarted(err)
	}
	s.p = p
	s.lines = jsonrpc.NewLineReader(p.stdout, o.Limits)
	o.Log.Debug("upstream started", "pid", s.PID())
	s.wg.Go(p.watch)
	s.wg.Go(s.readStderr)
	return s, nil
}

// PID returns the id of the process.
func (s *Server) PID() int { return s.p.cmd.Process.Pid }

// Started returns when the process was started.
func (s *Server) Started() time.Time { return s.p.started }

// Send passes messages on, in order, and keeps none of them. It waits while a process
// that does not read has much to read, but not after Finish or Abort. Between the wait
// and the passing it calls accepted, unless Finish or Abort was called: then the
// messages are dropped.
func (s *Server) Send(batch []*jsonrpc.Message, accepted func([]*jsonrpc.Message)) {
	s.text = appendLines(s.text, batch)
	s.p.stdin.write(s.text, func() { accepted(batch) })
	if s.text = s.text[:0]; cap(s.text) > keptBuffer {
		s.text = nil
	}
}

// Recv is [jsonrpc.RecvAll]. Its end is a [*jsonrpc.ClosedError] with the cause of
// the process's end. It has to be read on when nobody listens any more: a process
// must not be held up on its way out.
func (s *Server) Recv(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	for {
		m, err := s.lines.Read()
		if _, bad := errors.AsType[*jsonrpc.InvalidError](err); bad {
			return batch, err
		}
		if err != nil && len(batch) > 0 {
			return batch, nil // first what came before the end
		}
		if err != nil {
			return batch, s.ended()
		}
		// What came together goes on together.
		if batch = append(batch, m); !s.lines.Buffered() || len(batch) == maxAtOnce {
			return batch, nil
		}
	}
}

// ended returns the end of a process whose output has ended.
func (s *Server) ended() error {
	s.p.stdout.Close()
	close(s.p.drained)
	if !s.p.exitsSoon() {
		return &jsonrpc.ClosedError{Cause: jsonrpc.CauseStdoutClosed}
	}
	<-s.p.gone
	return &jsonrpc.ClosedError{Cause: s.p.cause()}
}

// stdinFailed tells that the process cannot be written to. A pipe breaks when a
// process exits, too; then its end is the true cause.
func (s *Server) stdinFailed(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.failed(&jsonrpc.ClosedError{Cause: jsonrpc.CauseWriteTimeout})
		return
	}
	if !s.p.exitsSoon() {
		s.failed(&jsonrpc.ClosedError{Cause: jsonrpc.CauseStdinClosed, Err: err})
	}
}

func (s *Server) readStderr() {
	defer close(s.stderrEnd)
	defer s.p.stderr.Close()
	s.stderr.readFrom(s.p.stderr)
}

// Finish passes the last messages on and closes stdin behind them. It does not wait
// for that. last is called when no Send will pass anything any more.
func (s *Server) Finish(last func() []*jsonrpc.Message) {
	s.p.stdin.finish(func() []byte { return appendLines(nil, last()) })
}

func appendLines(text []byte, messages []*jsonrpc.Message) []byte {
	for _, m := range messages {
		text = append(m.Append(text), '\n')
	}
	return text
}

// Abort closes stdin at once.
func (s *Server) Abort() { s.p.stdin.abort() }

// Stop makes the process and its group end, in three steps of the grace each: stdin
// is closed, which Finish or Abort has begun; SIGTERM; SIGKILL. When ctx is done they
// follow soon. It returns when nothing is left of them.
func (s *Server) Stop(ctx context.Context) {
	s.p.stop(ctx)
	s.wg.Wait()
}

// Unread reports whether the process surely has read nothing of what was sent. It may be called
// until Finish or Abort.
func (s *Server) Unread() bool { return s.p.stdin.unread() }

// Gone reports whether the process and its group are gone.
func (s *Server) Gone() bool {
	select {
	case <-s.p.gone:
		return true
	default:
		return false
	}
}

// Stderr returns the last lines that the process wrote to stderr.
func (s *Server) Stderr() []string { return s.stderr.tail() }

// LastWords is Stderr after the process's end: it waits a moment for the last lines,
// which are the ones that matter.
func (s *Server) LastWords() []string {
	select {
	case <-s.stderrEnd:
	case <-time.After(lull):
	}
	return s.stderr.tail()
}
