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

// readBuffer is how many bytes of a socket are read at once, at most: many small
// frames come with one system call.
const readBuffer = 64 << 10

// handshakeTimeout is how long a peer that dialled us may take for TLS.
const handshakeTimeout = 10 * time.Second

// A yamuxCarrier is a carrier as yamux sees it. It calls lose before yamux can know
// that it has ended.
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

// Close is how yamux ends what it does not understand. It is late then, and
// better than never.
func (s yamuxCarrier) Close() error {
	s.lose()
	return s.Conn.Close()
}

// A socket is a carrier on which each system call counts: reads are buffered,
// writes coalesced, and it knows when something last came.
type socket struct {
	net.Conn
	in    *bufio.Reader
	out   *coalescer
	since time.Time    // when it was made
	heard atomic.Int64 // when the last byte came, in nanoseconds after since
}

func newSocket(c net.Conn) *socket {
	s := &socket{Conn: c, out: newCoalescer(c), since: time.Now()}
	s.in = bufio.NewReaderSize(&readClock{s: s}, readBuffer)
	return s
}

func (s *socket) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s *socket) Write(p []byte) (int, error) { return s.out.Write(p) }

// Close closes the connection at once; what is not written yet is lost.
func (s *socket) Close() error {
	var err error
	if t, ok := s.Conn.(*tls.Conn); ok {
		err = t.NetConn().Close() // its own Close may wait for a peer who is gone
	} else {
		err = s.Conn.Close()
	}
	s.out.Close() // its Write has been unblocked
	return err
}

// silence returns how long nothing has come. Any byte counts: who is busy is
// not dead.
func (s *socket) silence() time.Duration {
	return time.Since(s.since) - time.Duration(s.heard.Load())
}

// A readClock reads from a socket's connection and notes when something comes.
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

// frames follows yamux's frames, to stop pings: yamux answers each in a goroutine
// of its own, of which a peer who does not read the answers could make any number.
// Neither end of a link sends any.
type frames struct {
	header [12]byte // version, type, flags, stream, length
	have   int      // bytes of header
	body   uint32   // bytes that are still to come
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

// handshake makes the handshake of TLS if c needs one. Its error says better why the
// other side refuses than that of a Read.
func handshake(ctx context.Context, c net.Conn) error {
	t, ok := c.(*tls.Conn)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	return t.HandshakeContext(ctx)
}
