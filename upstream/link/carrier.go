package link

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// readBuffer is how many bytes of a socket are read at once, so that one system call reads
// many small frames.
const readBuffer = 64 << 10

// handshakeTimeout is how long a peer that dialled us may take for TLS.
const handshakeTimeout = 10 * time.Second

// A yamuxCarrier is the carrier that yamux gets. It calls lose before yamux can know that
// the carrier has ended.
type yamuxCarrier struct {
	net.Conn
	lose func()
}

func (s yamuxCarrier) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if err != nil {
		s.lose()
	}
	return n, err
}

func (s yamuxCarrier) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	if err != nil {
		s.lose()
	}
	return n, err
}

// Close is called by yamux after a protocol error.
func (s yamuxCarrier) Close() error {
	s.lose()
	return s.Conn.Close()
}

// A socket is a carrier that saves system calls: it buffers reads and coalesces writes. It
// knows when the last byte came.
type socket struct {
	net.Conn
	in    *bufio.Reader
	out   *coalescer
	since time.Time    // when it was made
	heard atomic.Int64 // when the last byte came, in nanoseconds after since
	mute  atomic.Bool  // nothing can be written any more, but perhaps read
}

func newSocket(c net.Conn) *socket {
	s := &socket{Conn: c, since: time.Now()}
	s.out = newCoalescer(writeEnd{s})
	s.in = bufio.NewReaderSize(&readClock{s: s}, readBuffer)
	return s
}

func (s *socket) Read(p []byte) (int, error) { return s.in.Read(p) }

// Write drops p when nothing can be written any more. The other side may have closed after its last
// answers, which are still to be read: a Unix socket lets writes fail at once. Reading finds the end.
func (s *socket) Write(p []byte) (int, error) {
	n, err := s.out.Write(p)
	if err != nil && s.mute.Load() {
		return len(p), nil
	}
	return n, err
}

// A writeEnd writes to a socket's connection. After an error the rest may be read within byeTimeout.
type writeEnd struct{ s *socket }

func (w writeEnd) Write(p []byte) (int, error) {
	n, err := w.s.Conn.Write(p)
	if err != nil {
		w.s.mute.Store(w.s.Conn.SetReadDeadline(time.Now().Add(byeTimeout)) == nil)
	}
	return n, err
}

// Close closes the connection at once. Unwritten data are lost.
func (s *socket) Close() error {
	var err error
	if t, ok := s.Conn.(*tls.Conn); ok {
		err = t.NetConn().Close() // tls.Conn.Close may wait for a dead peer
	} else {
		err = s.Conn.Close()
	}
	s.out.Close() // the connection's end has unblocked its Write
	return err
}

// silence returns the time since the last byte came.
func (s *socket) silence() time.Duration {
	return time.Since(s.since) - time.Duration(s.heard.Load())
}

// A readClock reads from a socket's connection, and records when data came.
type readClock struct {
	s      *socket
	frames frames
}

func (h *readClock) Read(p []byte) (int, error) {
	n, err := h.s.Conn.Read(p)
	if n > 0 {
		h.s.heard.Store(int64(time.Since(h.s.since)))
		if bad := h.frames.pass(p[:n]); bad != nil {
			return 0, bad
		}
	}
	return n, err
}

// frames follows yamux's frames to refuse pings: yamux answers each in a goroutine of its
// own, so that a peer that does not read the answers could start any number. Neither end
// of a link sends pings.
type frames struct {
	header [12]byte // version, type, flags, stream, length
	have   int      // bytes of header
	body   uint32   // bytes of the body that are still to come
}

func (f *frames) pass(p []byte) error {
	for len(p) > 0 {
		if f.body > 0 {
			n := min(f.body, uint32(len(p)))
			f.body -= n
			p = p[n:]
			continue
		}
		n := copy(f.header[f.have:], p)
		f.have += n
		p = p[n:]
		if f.have < len(f.header) {
			return nil
		}
		f.have = 0
		switch version, kind := f.header[0], f.header[1]; {
		case version != 0: // yamux refuses it
		case kind == framePing:
			return errPing
		case kind == frameData:
			f.body = binary.BigEndian.Uint32(f.header[8:])
		}
	}
	return nil
}

// Types of frames, as yamux's specification has them.
const (
	frameData = 0
	framePing = 2
)

var errPing = errors.New("the other side sent a ping")

// handshake makes the TLS handshake if c needs one. Its error tells better than that of a
// Read why the other side refused.
func handshake(ctx context.Context, c net.Conn) error {
	t, ok := c.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	return t.HandshakeContext(ctx)
}
