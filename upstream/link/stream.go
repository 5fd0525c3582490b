package link

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	// lingerTimeout is how long a host waits until the proxy has read the closing line and
	// what was sent before. A proxy with a slow client is slow.
	lingerTimeout = 60 * time.Second

	// shrinkAfter is how long a stream keeps the buffer of a burst.
	shrinkAfter = time.Second

	// lingerBytes is how many bytes drain drops. If a peer sends more than this, a whole
	// window, before it sees the end of the stream, its writes fail after closeTimeout.
	lingerBytes = 256 << 10
)

// longAgo is a deadline that unblocks reads and writes.
var longAgo = time.Unix(1, 0)

// errClosed is the end of a stream that one side closed without a closing line.
var errClosed = &jsonrpc.ClosedError{Cause: jsonrpc.CauseClosed, Delivered: true}

// A stream is a yamux stream that ends as a Conn must. yamux's own Close does not unblock
// Read, the end of its session looks like a clean io.EOF, and after a Close unread data
// block the peer's writers.
type stream struct {
	// Static after construction.
	y    *yamux.Stream
	link *link

	reading sync.Mutex    // held while y is read
	stopped atomic.Bool   // Read has ended; only drain reads
	over    chan struct{} // closed by ending to unblock Enter; nil on a control stream
	ending  sync.Once
	hurried atomic.Bool // Read has a deadline

	burst     bool        // owned by Read: y's buffer has grown
	shrinking atomic.Bool // y's buffer will be dropped after shrinkAfter
}

// Read implements io.Reader. It never returns io.EOF, after which a LineReader
// would take a truncated line for a message.
func (s *stream) Read(p []byte) (int, error) {
	if !s.reading.TryLock() { // drain has it: Read has ended
		return 0, errClosed
	}
	defer s.reading.Unlock()
	if s.stopped.Load() {
		return 0, errClosed
	}
	s.heed()
	n, err := s.y.Read(p)
	if err != nil {
		err = s.ended(err)
	}
	if n > 0 {
		s.shrink(n == len(p))
		return n, nil // the next Read returns the error, if there was one
	}
	return 0, err
}

// shrink drops y's buffer after a burst. yamux would keep it, up to a whole window for each
// stream. The buffer is dropped only after shrinkAfter, so that it is not allocated again
// for each large message.
func (s *stream) shrink(more bool) {
	if s.burst && !more && s.shrinking.CompareAndSwap(false, true) {
		time.AfterFunc(shrinkAfter, func() {
			s.shrinking.Store(false) // first, so that a burst that ends now is not missed
			s.y.Shrink()
		})
	}
	s.burst = more
}

// maxFrame bounds the frames on a carrier, so that a large message does not hold
// up other streams.
const maxFrame = 16 << 10

// Write implements io.Writer. Only one may run at a time.
func (s *stream) Write(p []byte) (n int, err error) {
	s.heed()
	for n < len(p) {
		k, err := s.y.Write(p[n:min(n+maxFrame, len(p))])
		if n += k; err != nil {
			return n, s.ended(err)
		}
	}
	return n, nil
}

// ended returns the end of the stream that err, an error of y, means. After a timeout of the
// carrier it ends the link: yamux may still send the frame that timed out, and a window
// update that timed out is lost.
func (s *stream) ended(err error) error {
	if errors.Is(err, yamux.ErrConnectionWriteTimeout) {
		s.link.fail(err)
		return s.link.lost(err)
	}
	switch {
	case s.stopped.Load():
		return errClosed
	case s.link.dead.Load(), s.y.Session().IsClosed():
		return s.link.lost(net.ErrClosed)
	case s.hurried.Load() && errors.Is(err, yamux.ErrTimeout):
		return errSlowLine
	case err == io.EOF:
		return errClosed
	case errors.Is(err, yamux.ErrStreamClosed), errors.Is(err, yamux.ErrConnectionReset), errors.Is(err, yamux.ErrTimeout):
		return &jsonrpc.ClosedError{Cause: errClosed.Cause, Delivered: true, Err: err}
	}
	// An error of the carrier, which ends the session, though not at once.
	return s.link.lost(err)
}

// stop ends Read at once, and Write at the deadline.
func (s *stream) stop(deadline time.Time) {
	s.stopped.Store(true)
	s.wake()
	s.y.SetReadDeadline(longAgo)
	s.y.SetWriteDeadline(deadline)
	s.heed()
}

// wake unblocks Enter.
func (s *stream) wake() {
	if s.over != nil {
		s.ending.Do(func() { close(s.over) })
	}
}

// interrupt ends Read, Write and drain because the link has ended.
func (s *stream) interrupt() {
	s.wake()
	s.y.SetReadDeadline(longAgo)
	s.y.SetWriteDeadline(longAgo)
}

// heed interrupts s if the link has ended. It must be called after each change of a
// deadline, since that may have undone an interrupt.
func (s *stream) heed() {
	if s.link.dead.Load() {
		s.interrupt()
	}
}

// drain drops data from the other side, at most lingerBytes, until that closes the stream or
// the deadline has passed. It must follow stop, which makes a Read release the lock.
func (s *stream) drain(deadline time.Time) {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.y.SetReadDeadline(deadline)
	s.heed()
	_, _ = io.CopyN(io.Discard, s.y, lingerBytes)
}

// errSlowLine is the end of a stream with a large message that was late, or waited too long
// for its turn.
var errSlowLine = &jsonrpc.ClosedError{
	Cause: jsonrpc.CauseTimeout, Delivered: true, Says: "did not send a large message in time (timeout)",
}

// Enter implements [jsonrpc.Slots], for large lines. It also ends with the stream.
func (s *stream) Enter(<-chan struct{}) error {
	timer := time.NewTimer(s.link.within)
	defer timer.Stop()
	select {
	case s.link.large <- struct{}{}:
	case <-s.over:
		return s.ended(net.ErrClosed)
	case <-timer.C:
		return errSlowLine
	}
	s.hurried.Store(true)
	s.hurry(time.Now().Add(s.link.within))
	return nil
}

// Leave implements [jsonrpc.Slots].
func (s *stream) Leave() {
	s.hurried.Store(false)
	s.hurry(time.Time{})
	<-s.link.large
}

// hurry sets the deadline of Read. It does not undo those of stop, interrupt and drain.
func (s *stream) hurry(until time.Time) {
	if !s.reading.TryLock() { // drain has it: Read has ended
		return
	}
	defer s.reading.Unlock()
	if s.stopped.Load() {
		return
	}
	s.y.SetReadDeadline(until)
	if s.stopped.Load() {
		s.y.SetReadDeadline(longAgo)
	}
	s.heed()
}
