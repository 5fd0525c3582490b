// Package stdio makes a [jsonrpc.Conn] of the stdin and stdout of this process, at whose other end is the
// client that has started it. interrupt.go has the goroutines that it may need.
package stdio

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// errStdoutBroken is the cause if only a poll shows that stdout is broken.
var errStdoutBroken = errors.New("stdout is broken")

// A Conn is the client on the stdin and stdout of this process, as a [jsonrpc.Conn].
//
// The end of stdin is a half-close: Recv returns io.EOF once, and the client may still read its
// answers. The next Recv blocks until the client has left, which a broken stdout shows, or until
// Close.
type Conn struct {
	// Static after construction.
	in     io.ReadCloser
	out    io.WriteCloser
	stdout *os.File // out, or the file below it
	reader *jsonrpc.LineReader
	writer *jsonrpc.LineWriter
	gone   chan struct{} // closed by end

	// Owned by Recv.
	ended bool // stdin has ended

	once  sync.Once // of end
	cause error     // set before gone is closed
}

// New returns the client on in and out, and owns both. It makes writes to a broken stdout or
// stderr return an error instead of killing the process.
func New(in, out *os.File, limits jsonrpc.Limits) *Conn {
	surviveSIGPIPE()
	s := &Conn{in: interruptibleReader(in), out: interruptibleWriter(out), stdout: out, gone: make(chan struct{})}
	s.reader, s.writer = jsonrpc.NewLineReader(s.in, limits), jsonrpc.NewLineWriter(s.out)
	return s
}

// surviveSIGPIPE makes writes to broken descriptors 1 and 2 return EPIPE. Children would inherit an
// ignored signal.
var surviveSIGPIPE = sync.OnceFunc(func() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // nobody reads it
})

// Recv implements [jsonrpc.Conn].
func (s *Conn) Recv() (*jsonrpc.Message, error) {
	if s.ended {
		s.awaitGone()
		return nil, s.cause
	}
	select {
	case <-s.gone: // first, even if there is more to read
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

// awaitGone returns when the client has left, or after Close.
func (s *Conn) awaitGone() {
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
		case !ok: // this system cannot tell
			<-s.gone
		}
	}
}

// Send implements [jsonrpc.Conn]. It returns when stdout has taken the message, so it blocks while
// the client does not read.
func (s *Conn) Send(m *jsonrpc.Message) error { return s.sent(s.writer.Write(m)) }

// SendAll sends messages in few writes.
func (s *Conn) SendAll(messages []*jsonrpc.Message) error {
	return s.sent(s.writer.WriteAll(messages))
}

func (s *Conn) sent(err error) error {
	if err != nil {
		s.end(err)
		return s.cause
	}
	return nil
}

// Transport returns the name of the transport.
func (s *Conn) Transport() string { return "stdio" }

// Close implements [jsonrpc.Conn]. Messages that Send accepted have been written.
func (s *Conn) Close() error {
	s.end(nil)
	return nil
}

// end ends the Conn. The first cause counts.
func (s *Conn) end(cause error) {
	s.once.Do(func() {
		s.cause = jsonrpc.Closed(cause)
		close(s.gone)
		s.in.Close()
		s.out.Close()
	})
}
