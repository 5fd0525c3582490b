package link

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// ringSize is how many bytes each direction of a Ring holds; then Write waits.
const ringSize = 64 << 10

// Ring returns the two ends of a carrier in memory. After the Close of one end the other
// reads the data that were written before, then io.EOF. Close unblocks reads and writes
// on both ends. There are no deadlines, since yamux sets none on its carrier.
//
// A Ring is buffered, since yamux writes the header and the body of a frame separately:
// over net.Pipe each would wait for the reader.
func Ring() (net.Conn, net.Conn) {
	ab, ba := newRing(), newRing()
	return &ringConn{in: ba, out: ab}, &ringConn{in: ab, out: ba}
}

// ringConn is one end of a Ring.
type ringConn struct{ in, out *ring }

func (c *ringConn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *ringConn) Write(p []byte) (int, error) { return c.out.write(p) }

func (c *ringConn) Close() error {
	c.in.abandon()
	c.out.end()
	return nil
}

func (c *ringConn) LocalAddr() net.Addr              { return ringAddr }
func (c *ringConn) RemoteAddr() net.Addr             { return ringAddr }
func (c *ringConn) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (c *ringConn) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (c *ringConn) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

var ringAddr = &net.UnixAddr{Net: "ring", Name: "ring"}

// A ring is one direction of a Ring.
type ring struct {
	mu        sync.Mutex // guards the fields below
	readable  sync.Cond
	writable  sync.Cond
	buf       []byte // ringSize bytes from the first write on
	start, n  int    // n bytes from buf[start] on, around the end, are unread
	ended     bool   // the writer closed: reads get the rest, then io.EOF
	abandoned bool   // the reader closed: writes fail
}

func newRing() *ring {
	r := &ring{}
	r.readable.L, r.writable.L = &r.mu, &r.mu
	return r
}

func (r *ring) read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		switch {
		case r.abandoned:
			return 0, io.ErrClosedPipe
		case r.n > 0 || len(p) == 0:
			n := r.take(p)
			r.writable.Signal()
			return n, nil
		case r.ended:
			return 0, io.EOF
		}
		r.readable.Wait()
	}
}

func (r *ring) write(p []byte) (n int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if r.ended || r.abandoned {
			return n, io.ErrClosedPipe
		}
		n += r.put(p[n:])
		if n == len(p) && announcesBody(p) {
			return n, nil
		}
		r.readable.Signal()
		if n == len(p) {
			return n, nil
		}
		r.writable.Wait()
	}
}

// announcesBody reports whether p is the header of a yamux frame with a body: version 0, type
// data, flags and stream, length. yamux writes the body next. A reader that was woken for
// the header would wait again, at the cost of two goroutine switches a message.
func announcesBody(p []byte) bool {
	return len(p) == 12 && p[0] == 0 && p[1] == 0 && binary.BigEndian.Uint32(p[8:]) > 0
}

// take moves unread bytes to p.
func (r *ring) take(p []byte) (n int) {
	for n < len(p) && r.n > 0 {
		k := copy(p[n:], r.buf[r.start:min(r.start+r.n, len(r.buf))])
		r.start = (r.start + k) % len(r.buf)
		r.n -= k
		n += k
	}
	return n
}

// put copies as much of p into the ring as fits.
func (r *ring) put(p []byte) (n int) {
	if r.buf == nil {
		r.buf = make([]byte, ringSize)
	}
	for n < len(p) && r.n < len(r.buf) {
		at := (r.start + r.n) % len(r.buf)
		k := copy(r.buf[at:min(at+len(r.buf)-r.n, len(r.buf))], p[n:])
		r.n += k
		n += k
	}
	return n
}

func (r *ring) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.wake()
}

func (r *ring) abandon() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.abandoned = true
	r.buf, r.n = nil, 0
	r.wake()
}

func (r *ring) wake() {
	r.readable.Broadcast()
	r.writable.Broadcast()
}
