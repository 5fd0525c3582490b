package upstream

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// maxAtOnce bounds how many messages from a process are passed on together.
const maxAtOnce = 64

// keptBuffer is what an idle stream keeps of the buffer of its longest line.
const keptBuffer = 4 << 10

// A local server is a process of the host's.
type local struct {
	// Static after start.
	host    *Host
	command *Command
	wg      *sync.WaitGroup               // the stream's
	failed  func(cause string, err error) // told when stdin fails
	p       *process
	stderr  stderrLog

	stderrEnd chan struct{} // closed by readStderr

	lines *jsonrpc.LineReader // owned by recv
	text  []byte              // owned by send
}

func newLocal(s *stream) *local {
	return &local{
		host: s.host, command: s.up.Command, wg: &s.wg, failed: s.end,
		stderr: stderrLog{log: s.log, quiet: s.onTrial}, stderrEnd: make(chan struct{}),
	}
}

func (l *local) sessionless() bool { return false } // the process is the session

func (l *local) start() error {
	p, err := l.host.startProcess(l.command, l.wg, l.stdinFailed)
	if err != nil {
		return err
	}
	l.p = p
	l.lines = jsonrpc.NewLineReader(p.stdout, l.host.Limits)
	l.stderr.log.Debug("upstream started", "pid", p.cmd.Process.Pid)
	l.wg.Go(p.watch)
	l.wg.Go(l.readStderr)
	return nil
}

func (l *local) send(batch []*jsonrpc.Message, accepted func([]*jsonrpc.Message)) {
	l.text = appendLines(l.text, batch)
	if err := l.p.stdin.write(l.text, func() { accepted(batch) }); err != nil {
		l.wg.Go(func() { l.stdinFailed(err) })
	}
	if l.text = l.text[:0]; cap(l.text) > keptBuffer {
		l.text = nil
	}
}

// recv reads on when nobody listens any more: a server must not be held up on
// its way out.
func (l *local) recv(batch []*jsonrpc.Message) ([]*jsonrpc.Message, error) {
	for {
		m, err := l.lines.Read()
		if _, bad := errors.AsType[*jsonrpc.InvalidError](err); bad {
			return batch, err
		}
		if err != nil && len(batch) > 0 {
			return batch, nil // first what came before the end
		}
		if err != nil {
			return batch, l.ended()
		}
		// What came together goes on together.
		if batch = append(batch, m); !l.lines.Buffered() || len(batch) == maxAtOnce {
			return batch, nil
		}
	}
}

// ended returns the end of a process whose output has ended.
func (l *local) ended() error {
	l.p.stdout.Close()
	close(l.p.drained)
	cause := causeStdoutClosed
	select {
	case <-l.p.gone:
		cause = l.p.cause()
	case <-time.After(exitTime):
	}
	return &jsonrpc.ClosedError{Cause: cause}
}

// stdinFailed tells that the process cannot be written to. A pipe breaks when a
// process exits, too; then its end is the true cause.
func (l *local) stdinFailed(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		l.failed(causeWriteTimeout, nil)
		return
	}
	select {
	case <-l.p.exited:
	case <-l.p.stopping:
	case <-time.After(exitTime):
		l.failed(causeStdinClosed, err)
	}
}

func (l *local) readStderr() {
	defer close(l.stderrEnd)
	defer l.p.stderr.Close()
	l.stderr.readFrom(l.p.stderr)
}

func (l *local) finish(last func() []*jsonrpc.Message) {
	l.p.stdin.finish(func() []byte { return appendLines(nil, last()) })
}

func appendLines(text []byte, messages []*jsonrpc.Message) []byte {
	for _, m := range messages {
		text = append(m.Append(text), '\n')
	}
	return text
}

func (l *local) abort() { l.p.stdin.abort() }

func (l *local) stop(ctx context.Context) { l.p.stop(ctx) }

func (l *local) status(st *Status) {
	st.PID, st.Started, st.Stderr = l.p.cmd.Process.Pid, l.p.started, l.stderr.tail()
	switch {
	case closed(l.p.gone):
		st.State = StateReady
	case closed(l.p.stopping):
		st.State = StateStopping
	}
}

func (l *local) lastWords() []string {
	select { // the last lines are the ones that matter
	case <-l.stderrEnd:
	case <-time.After(lull):
	}
	return l.stderr.tail()
}
