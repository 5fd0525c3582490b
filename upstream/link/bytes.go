package link

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// bytesLine is the hello of a stream of bytes.
const bytesLine = notePrefix + `:` + version + `,"bytes":true}` + "\n"

// isBytes reports whether a hello opens a stream of bytes.
func isBytes(line []byte) bool {
	var at [1]jsonrpc.Span
	err := jsonrpc.Find(line, jsonrpc.Span{}, at[:], "bytes")
	return err == nil && string(at[0].Of(line)) == "true"
}

// A byteStream is a stream after its hello, as a connection between two programs that agree on
// what they send. The dialler sends first.
type byteStream struct {
	*conn
	ahead   []byte     // was read with the answer to the hello; owned by Read
	writing sync.Mutex // held by Write
}

// Read implements net.Conn. After the end of the link its error is a [*jsonrpc.ClosedError].
func (b *byteStream) Read(p []byte) (int, error) {
	if len(b.ahead) > 0 {
		n := copy(p, b.ahead)
		b.ahead = b.ahead[n:]
		return n, nil
	}
	n, err := b.stream.Read(p)
	return n, b.plain(err, io.EOF)
}

// Write implements net.Conn. Its errors are like those of Read.
func (b *byteStream) Write(p []byte) (int, error) {
	b.writing.Lock()
	defer b.writing.Unlock()
	if b.end.Load() != nil { // yamux may still have room
		return 0, net.ErrClosed
	}
	n, err := b.stream.Write(p)
	return n, b.plain(err, io.ErrClosedPipe)
}

// plain returns the error of a net.Conn for that of a stream; ended if the other side has closed it.
func (b *byteStream) plain(err, ended error) error {
	switch {
	case err == nil:
		return nil
	case b.end.Load() != nil:
		return net.ErrClosed
	case err == errClosed:
		return ended
	case errors.Is(err, yamux.ErrTimeout) && !b.stream.link.dead.Load():
		return os.ErrDeadlineExceeded
	}
	return err
}

// LocalAddr implements net.Conn.
func (b *byteStream) LocalAddr() net.Addr { return b.stream.y.LocalAddr() }

// RemoteAddr implements net.Conn.
func (b *byteStream) RemoteAddr() net.Addr { return b.stream.y.RemoteAddr() }

// SetDeadline implements net.Conn.
func (b *byteStream) SetDeadline(t time.Time) error {
	return errors.Join(b.SetReadDeadline(t), b.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn. A Close wins over it.
func (b *byteStream) SetReadDeadline(t time.Time) error {
	return b.setDeadline(b.stream.y.SetReadDeadline, t)
}

// SetWriteDeadline implements net.Conn. A Close wins over it.
func (b *byteStream) SetWriteDeadline(t time.Time) error {
	return b.setDeadline(b.stream.y.SetWriteDeadline, t)
}

func (b *byteStream) setDeadline(set func(time.Time) error, t time.Time) error {
	b.mu.Lock() // shut, which sets both
	defer b.mu.Unlock()
	if b.end.Load() != nil {
		return net.ErrClosed
	}
	err := set(t)
	b.stream.heed()
	return err
}

// relayBuffer is how many bytes a relay reads at a time. A stream that is idle has two such buffers.
const relayBuffer = 8 << 10

// relay continues a stream on the link of s.Through until it ends at either side. The error says why it could not be
// opened there. If that link is lost, or ctx ends, the link of c ends, too, before the stream does: its peer then
// sees a lost link, as it would without a relay, and not a closed stream.
func (s *Server) relay(ctx context.Context, h Hello, c *conn) error {
	opened, err := s.Through.Open(ctx, h)
	if err != nil {
		return err
	}
	c.host = false // the host writes the closing line
	near, far := &byteStream{conn: c}, &byteStream{conn: opened.(*conn)}
	far.ahead = far.lines.Rest()
	defer context.AfterFunc(ctx, func() { c.stream.link.fail(context.Cause(ctx)) })()
	pass := func(to, from *byteStream) {
		_, _ = io.CopyBuffer(to, from, make([]byte, relayBuffer)) // every error is an end
		if far.stream.link.over() {
			c.stream.link.fail(errBehind)
		}
		near.Close()
		far.Close()
	}
	var back sync.WaitGroup
	back.Go(func() { pass(near, far) })
	pass(far, near)
	back.Wait()
	return nil
}

// errBehind is why a link ends with the one behind it.
var errBehind = errors.New("the link behind it was lost")
