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
	// lingerTimeout is how long a host waits for the proxy to read what was
	// sent before the closing line. A proxy that is slow has a slow client.
	lingerTimeout = 60 * time.Second

	// shrinkAfter is how long a stream keeps the buffer of a burst.
	shrinkAfter = time.Second

	// lingerBytes is how much a host drops while it waits. A proxy that sent
	// more, a whole window, does not see that its stream has ended: it gets
	// closeTimeout, and then its writes fail.
	lingerBytes = 256 << 10
)

// longAgo is a deadline that unblocks.
var longAgo = time.Unix(1, 0)

// errClosed is the end of a stream that one of its sides closed without a word.
var errClosed = &jsonrpc.ClosedError{Cause: jsonrpc.CauseClosed, Delivered: true}

// A stream makes a yamux stream end as a Conn must. yamux's Close leaves a
// blocked Read waiting, the end of the session looks like a clean io.EOF, and
// data that nobody reads after a close block the peer's writers.
type stream struct {
	// Static after construction.
	y    *yamux.Stream
	link *link

	reading sync.Mutex    // held by whoever reads from y
	stopped atomic.Bool   // Read is over; only drain reads
	over    chan struct{} // closed by ending, for who waits to read; nil before the hello is through
	ending  sync.Once
	hurried atomic.Bool // Read has a deadline

	burst     bool        // owned by Read: y's buffer has grown
	shrinking atomic.Bool // y's buffer will be dropped in a moment
}

// Read implements io.Reader. It never returns io.EOF, after which a LineReader
// would take a line that was cut off for a message.
func (s *stream) Read(p []byte) (int, error) {
	if !s.reading.TryLock() { // drain has it: Read is over
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
		return n, nil // with an error the link has ended, and the next Read says so
	}
	return 0, err
}

// shrink drops the buffer that a burst left behind, shortly after the burst was
// read to its end. yamux keeps it otherwise, up to a whole window for each
// stream; dropped at once it would be made anew for each larger message.
func (s *stream) shrink(more bool) {
	if s.burst && !more && s.shrinking.CompareAndSwap(false, true) {
		time.AfterFunc(shrinkAfter, func() {
			s.shrinking.Store(false) // first: a burst that ends now is for the next time
			s.y.Shrink()
		})
	}
	s.burst = more
}

// maxFrame bounds the frames on a socket, so that a large message does not hold
// up those of other streams. In memory nothing takes long.
const maxFrame = 16 << 10

// Write implements io.Writer. Only one may run at a time.
func (s *stream) Write(p []byte) (n int, err error) {
	frame := len(p)
	if s.link.socket != nil {
		frame = maxFrame
	}
	s.heed()
	for n < len(p) {
		k, err := s.y.Write(p[n:min(n+frame, len(p))])
		if n += k; err != nil {
			return n, s.ended(err)
		}
	}
	return n, nil
}

// ended returns what err, from y, says about the end of the stream. After a
// timeout of the carrier it ends the link: yamux may still send the frame that
// it gave up, and a window update that it gave up is lost.
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
	// The carrier's own error: the session ends of it, though not at once.
	return s.link.lost(err)
}

// stop ends Read, and Write at the deadline unless the other side reads.
func (s *stream) stop(deadline time.Time) {
	s.stopped.Store(true)
	s.wake()
	s.y.SetReadDeadline(longAgo)
	s.y.SetWriteDeadline(deadline)
	s.heed()
}

// wake ends the wait for a place.
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

// heed interrupts s if the link has ended. Who has set a deadline must ask, since
// the link may have ended before.
func (s *stream) heed() {
	if s.link.dead.Load() {
		s.interrupt()
	}
}

// linger waits, for a while, until the other side has closed the stream.
func (s *stream) linger() { s.drain(time.Now().Add(lingerTimeout)) }

// finish waits until the other side has closed the stream too, which this side
// has closed, or yamux gives up on it.
func (s *stream) finish() { s.drain(time.Time{}) } // ends after closeTimeout at the latest

// drain drops what the other side still sends, up to lingerBytes. The lock is
// free as soon as a Read that stop interrupts is out.
func (s *stream) drain(deadline time.Time) {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.y.SetReadDeadline(deadline)
	s.heed()
	_, _ = io.CopyN(io.Discard, s.y, lingerBytes) // any end will do
}

// errSlowLine is the end of a stream with a large message that did not come in time, or found
// no place.
var errSlowLine = &jsonrpc.ClosedError{Cause: jsonrpc.CauseTimeout, Delivered: true, Says: "did not send a large message in time (timeout)"}

// largeLines are the places of the large lines of a stream.
type largeLines struct{ s *stream }

// Enter implements [jsonrpc.Slots]. The end of the stream is what it waits for besides.
func (p largeLines) Enter(<-chan struct{}) error {
	timer := time.NewTimer(p.s.link.within)
	defer timer.Stop()
	select {
	case p.s.link.large <- struct{}{}:
	case <-p.s.over:
		return p.s.ended(net.ErrClosed)
	case <-timer.C:
		return errSlowLine
	}
	p.s.hurried.Store(true)
	p.s.hurry(time.Now().Add(p.s.link.within))
	return nil
}

// Leave implements [jsonrpc.Slots].
func (p largeLines) Leave() {
	p.s.hurried.Store(false)
	p.s.hurry(time.Time{})
	<-p.s.link.large
}

// hurry sets the deadline of Read. It does not undo that of stop, interrupt or drain.
func (s *stream) hurry(until time.Time) {
	if !s.reading.TryLock() { // drain has it: Read is over
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
