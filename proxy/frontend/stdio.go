package frontend

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// Why a Stdio ended, besides what the kernel says.
var errStdoutBroken = errors.New("stdout is broken")

// A Stdio is the one client on a process's stdin and stdout, as a
// [jsonrpc.Conn].
//
// The end of stdin is a half-close: Recv returns io.EOF, once, and the client
// may still want its answers. The next Recv blocks until the client is gone
// altogether, which a broken stdout shows, or until Close.
type Stdio struct {
	// Static after construction.
	in     io.ReadCloser
	out    io.WriteCloser
	stdout *os.File // out, or what is below it
	reader *jsonrpc.LineReader
	writer *jsonrpc.LineWriter
	gone   chan struct{} // closed by end

	// Owned by Recv.
	ended bool // stdin is at its end

	once  sync.Once // of end
	cause error     // of the end; set before gone is closed
}

// NewStdio returns the client on in and out, which it owns from now on. From now
// on, too, a write to a broken stdout or stderr is an error and does not kill the
// process.
func NewStdio(in, out *os.File, limits jsonrpc.Limits) *Stdio {
	surviveSIGPIPE()
	s := &Stdio{in: interruptibleReader(in), out: interruptibleWriter(out), stdout: out, gone: make(chan struct{})}
	s.reader, s.writer = jsonrpc.NewLineReader(s.in, limits), jsonrpc.NewLineWriter(s.out)
	return s
}

// surviveSIGPIPE makes writes to broken descriptors 1 and 2 return EPIPE.
// Ignoring the signal would do so too, but children inherit that.
var surviveSIGPIPE = sync.OnceFunc(func() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // nobody reads it
})

// Recv implements [jsonrpc.Conn].
func (s *Stdio) Recv() (*jsonrpc.Message, error) {
	if s.ended {
		s.awaitGone()
		return nil, s.cause
	}
	select {
	case <-s.gone: // comes first, even if there is more to read
		return nil, s.cause
	default:
	}
	m, err := s.reader.Read()
	if _, invalid := errors.AsType[*jsonrpc.InvalidError](err); err == nil || invalid {
		return m, err
	}
	if err == io.EOF {
		s.ended = true
		return nil, io.EOF
	}
	s.end(err)
	return nil, s.cause
}

// awaitGone returns when the client is gone, or after Close.
func (s *Stdio) awaitGone() {
	for {
		select {
		case <-s.gone:
			return
		default:
		}
		broken, ok := pollBroken(s.stdout)
		switch {
		case broken:
			s.end(errStdoutBroken)
		case !ok: // nobody can tell
			<-s.gone
		}
	}
}

// Send implements [jsonrpc.Conn]. It returns when stdout has taken the message,
// so it blocks while the client does not read.
func (s *Stdio) Send(m *jsonrpc.Message) error { return s.sent(s.writer.Write(m)) }

// SendAll sends messages with few writes.
func (s *Stdio) SendAll(messages []*jsonrpc.Message) error {
	return s.sent(s.writer.WriteAll(messages))
}

func (s *Stdio) sent(err error) error {
	if err != nil {
		s.end(err)
		return s.cause
	}
	return nil
}

// Transport names what carries the client's messages.
func (s *Stdio) Transport() string { return "stdio" }

// Close implements [jsonrpc.Conn]. What Send accepted has been written by then.
func (s *Stdio) Close() error {
	s.end(nil)
	return nil
}

// end is every way in which a Stdio ends; the first cause counts.
func (s *Stdio) end(cause error) {
	s.once.Do(func() {
		s.cause = jsonrpc.Closed(cause)
		close(s.gone)
		s.in.Close()
		s.out.Close()
	})
}
