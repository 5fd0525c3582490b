package frontend

import (
	"errors"
	"io"
	"os"
	ossignal "os/signal"
	"sync"
	"syscall"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// Why a Stdio ended, besides what the kernel says.
var errStdoutBroken = errors.New("stdout is broken")

// A Stdio is the one client on a process's stdin and stdout, as a
// [jsonrpc.Conn].
//
// The end of stdin is a half-close: Recv returns io.EOF, once, and the client
// may still want its answers. The next Recv blocks until the client is gone
// altogether, which a broken stdout shows, or until Close.
//
// Nothing interrupts a read or write of a descriptor that was inherited in
// blocking mode, not even closing it. So two goroutines do nothing but that,
// readLoop and writeLoop. Close unblocks Recv and Send at once; a goroutine that
// is inside such a read or write then stays, until the other side acts or the
// process ends. It is the one place in the proxy that may leave any behind.
type Stdio struct {
	// Static after construction.
	in, out *os.File

	received chan received // from readLoop to Recv; never closed
	gone     chan struct{} // closed by end

	// Owned by Recv.
	ended bool // stdin is at its end

	lines   *jsonrpc.LineWriter // on a handOver; its lock orders messages
	text    chan []byte         // from Send to writeLoop; never closed
	written chan error          // its answer; capacity 1, so that giving it never blocks

	once  sync.Once // of end
	cause error     // of the end; set before gone is closed, and read after
}

type received struct {
	m   *jsonrpc.Message
	err error
}

// NewStdio returns the client on in and out, which it owns from now on. From now
// on, too, a write to a broken stdout or stderr is an error and does not kill the
// process.
func NewStdio(in, out *os.File, limits jsonrpc.Limits) *Stdio {
	surviveSIGPIPE()
	s := &Stdio{
		in: in, out: out,
		received: make(chan received), gone: make(chan struct{}),
		text: make(chan []byte), written: make(chan error, 1),
	}
	s.lines = jsonrpc.NewLineWriter(handOver{s})
	go s.readLoop(jsonrpc.NewLineReader(in, limits))
	go s.writeLoop()
	return s
}

// surviveSIGPIPE makes writes to broken descriptors 1 and 2 return EPIPE.
// Ignoring the signal would do so too, but children inherit that.
var surviveSIGPIPE = sync.OnceFunc(func() {
	ossignal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // nobody reads it
})

// readLoop reads stdin until its end.
func (s *Stdio) readLoop(lines *jsonrpc.LineReader) {
	for {
		m, err := lines.Read()
		select {
		case s.received <- received{m, err}:
		case <-s.gone:
			return
		}
		if err != nil && !isInvalid(err) {
			return
		}
	}
}

func isInvalid(err error) bool {
	_, ok := errors.AsType[*jsonrpc.InvalidError](err)
	return ok
}

// writeLoop writes to stdout what Send hands it.
func (s *Stdio) writeLoop() {
	for {
		select {
		case text := <-s.text:
			_, err := s.out.Write(text)
			s.written <- err
		case <-s.gone:
			return
		}
	}
}

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
	select {
	case r := <-s.received:
		switch {
		case r.err == nil || isInvalid(r.err):
			return r.m, r.err
		case r.err == io.EOF:
			s.ended = true
			return nil, io.EOF
		}
		s.end(r.err)
	case <-s.gone:
	}
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
		broken, ok := pollBroken(s.out)
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
func (s *Stdio) Send(m *jsonrpc.Message) error { return s.sent(s.lines.Write(m)) }

// SendAll sends messages with few writes.
func (s *Stdio) SendAll(messages []*jsonrpc.Message) error { return s.sent(s.lines.WriteAll(messages)) }

func (s *Stdio) sent(err error) error {
	if err != nil {
		s.end(err)
		return s.cause
	}
	return nil
}

// A handOver is stdout to a LineWriter: it has writeLoop write. After an error
// that may still be at it.
type handOver struct{ *Stdio }

func (s handOver) Write(text []byte) (int, error) {
	select {
	case <-s.gone:
		return 0, s.cause
	default:
	}
	select {
	case s.text <- text:
	case <-s.gone:
		return 0, s.cause
	}
	select {
	case err := <-s.written:
		return len(text), err
	case <-s.gone:
		return 0, s.cause
	}
}

// Close implements [jsonrpc.Conn]. What Send accepted has been written by then.
func (s *Stdio) Close() error {
	s.end(nil)
	return nil
}

// end is every way in which a Stdio ends; the first cause counts. Closing the
// files unblocks those reads and writes that can be.
func (s *Stdio) end(cause error) {
	s.once.Do(func() {
		s.cause = jsonrpc.Closed(cause)
		close(s.gone)
		s.in.Close()
		s.out.Close()
	})
}
