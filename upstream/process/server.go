package process

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// maxAtOnce bounds the messages that Recv returns.
const maxAtOnce = 64

// Options configure a server.
type Options struct {
	Limits jsonrpc.Limits // of one message
	Log    *slog.Logger   // gets the process's stderr

	// Quiet reports whether to log stderr at level debug.
	Quiet func() bool

	// Failed is called at most once, in a goroutine of its own, if writing to the
	// process fails while it runs. It must not wait for Stop.
	Failed func(end *jsonrpc.ClosedError)
}

// A Server is one process that speaks MCP on its stdin and stdout. The caller of Start calls
// Recv until it fails, and at the end Finish or Abort, then Stop. Send and Recv are for one
// goroutine each.
type Server struct {
	// Static after construction.
	p      *process
	stderr stderrLog
	failed func(*jsonrpc.ClosedError)
	wg     sync.WaitGroup // watch, readStderr, stdin's drain, and the report of its failure

	stderrEnd chan struct{} // closed by readStderr

	lines *jsonrpc.LineReader // owned by Recv
}

// Start starts a server. The error is a [*jsonrpc.ClosedError] whose text tells how to fix
// the command.
func Start(c *Command, o Options) (*Server, error) {
	s := &Server{
		failed: o.Failed, stderrEnd: make(chan struct{}),
	}
	s.stderr.assign(o.Log, o.Quiet)
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

// Assign replaces the Log, Quiet and Failed of Start, for a server that was started ahead. It must
// be called before Send.
func (s *Server) Assign(o Options) {
	s.failed = o.Failed
	s.stderr.assign(o.Log, o.Quiet)
	o.Log.Debug("upstream started ahead", "pid", s.PID())
}

// Exited is closed when the process has exited.
func (s *Server) Exited() <-chan struct{} { return s.p.exited }

// HasExited is whether the process has exited. It may know earlier than Exited.
func (s *Server) HasExited() bool {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	select {
	case <-s.p.exited:
		return true
	default:
		return s.p.reaped || s.p.group.exited()
	}
}

// PID returns the id of the process.
func (s *Server) PID() int { return s.p.cmd.Process.Pid }

// Started returns when the process was started.
func (s *Server) Started() time.Time { return s.p.started }

// Send writes messages to stdin, in order, and keeps none of them. It waits while the
// backlog is full, but not after Finish or Abort. It calls accepted between the wait and the
// writing. After Finish or Abort it drops the messages and does not call accepted.
func (s *Server) Send(batch []*jsonrpc.Message, accepted func([]*jsonrpc.Message)) {
	jsonrpc.Lines(batch, func(text []byte) { s.p.stdin.write(text, func() { accepted(batch) }) })
}

// Recv is [jsonrpc.RecvAll]. The error at the end is a [*jsonrpc.ClosedError] with the cause
// of the process's end. The caller must read on after Finish or Abort, so that the process
// does not block while it exits.
func (s *Server) Recv(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	for {
		m, err := s.lines.Read()
		if _, bad := errors.AsType[*jsonrpc.InvalidError](err); bad {
			return batch, err
		}
		if err != nil && len(batch) > 0 {
			return batch, nil // the end comes with the next call
		}
		if err != nil {
			return batch, s.ended()
		}
		// Messages that arrived together are returned together.
		if batch = append(batch, m); !s.lines.Buffered() || len(batch) == maxAtOnce {
			return batch, nil
		}
	}
}

// ended returns the end of a process whose stdout has ended.
func (s *Server) ended() error {
	s.p.stdout.Close()
	close(s.p.drained)
	if !s.p.exitsSoon() {
		return &jsonrpc.ClosedError{Cause: jsonrpc.CauseStdoutClosed}
	}
	<-s.p.gone
	return &jsonrpc.ClosedError{Cause: s.p.cause()}
}

// stdinFailed reports that writing to stdin has failed. If the process exits, that is the
// cause, and Recv reports it.
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

// Finish writes the last messages and then closes stdin, without waiting. It calls last
// after the last Send that writes anything.
func (s *Server) Finish(last func() []*jsonrpc.Message) {
	s.p.stdin.finish(func() (text []byte) {
		jsonrpc.Lines(last(), func(lines []byte) { text = bytes.Clone(lines) })
		return text
	})
}

// Abort closes stdin at once.
func (s *Server) Abort() { s.p.stdin.abort() }

// Stop ends the process and its group in three steps, each within the grace: the end of
// stdin, which Finish or Abort has begun; SIGTERM; SIGKILL. When ctx is done, all three take
// less than a second. Stop returns when nothing is left of the process.
func (s *Server) Stop(ctx context.Context) {
	s.p.stop(ctx)
	s.wg.Wait()
}

// Unread reports whether the process has certainly read nothing from stdin. It must not be
// called after Finish or Abort.
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

// LastWords is Stderr after the process's end. It waits a moment for the last lines.
func (s *Server) LastWords() []string {
	select {
	case <-s.stderrEnd:
	case <-time.After(lull):
	}
	return s.stderr.tail()
}
