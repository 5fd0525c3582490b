package link

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// stopTimeout is how long handlers whose ctx was cancelled may take before the
// link is cut.
const stopTimeout = 2 * time.Second

// A Handler serves one stream. It owns c until it returns; then c is closed,
// and the [*jsonrpc.ClosedError] that it returned is the cause that the proxy
// hears, unless c was closed before. ctx is cancelled to force it to end; the
// end of the link does not cancel ctx, but every Recv and Send then fails.
type Handler func(ctx context.Context, h Hello, c jsonrpc.Conn) error

// A Server is the host's end: it accepts streams to upstreams.
type Server struct {
	Handle Handler
	Known  func(upstream string) bool // whether there is such an upstream, at once; nil knows all
	Log    *slog.Logger               // nil discards
	Limits jsonrpc.Limits             // of one message from the proxy

	// HelloTimeout is how long a stream may take to say hello; zero means 10 s.
	HelloTimeout time.Duration
}

// Serve owns carrier until it returns, and runs Handle for each stream. It
// returns when the link has ended, or ctx has, and all handlers have returned,
// with the cause. Cancelling ctx cancels that of the handlers; after 2 s the
// link is cut.
func (s *Server) Serve(ctx context.Context, carrier net.Conn) error {
	l, err := newLink(carrier, yamux.Server, newConfig(orDiscard(s.Log)))
	if err != nil {
		return err
	}
	var streams sync.WaitGroup
	err = s.accept(ctx, l, &streams)
	cut := time.AfterFunc(stopTimeout, func() { l.fail(err) })
	streams.Wait()
	l.settle() // the closing lines
	cut.Stop()
	return l.close(err)
}

// accept accepts streams until the link or ctx ends, and returns the cause. It
// does no work itself: a stream that waits too long here ends the link.
func (s *Server) accept(ctx context.Context, l *link, streams *sync.WaitGroup) error {
	for {
		y, err := l.y.AcceptStreamWithContext(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		streams.Go(func() { s.serve(ctx, l, y) })
	}
}

// serve serves one stream.
func (s *Server) serve(ctx context.Context, l *link, y *yamux.Stream) {
	c := hostConn{newConn(l, y, s.Limits)}
	h, err := s.greet(c)
	if errors.Is(err, jsonrpc.ErrClosed) { // nobody is there to hear an answer
		c.shut(errClosed, nil, longAgo)
		return
	}
	if err != nil {
		orDiscard(s.Log).Warn("hello refused", "upstream", h.Upstream, "err", err)
		c.shut(errClosed, refusalLine(err.Error()), time.Now().Add(lastTimeout))
		return
	}
	c.CloseCause(s.Handle(ctx, h, c))
}

// greet reads the hello and accepts it, or returns why it is refused.
func (s *Server) greet(c hostConn) (Hello, error) {
	c.stream.y.SetReadDeadline(time.Now().Add(orElse(s.HelloTimeout, 10*time.Second)))
	line, err := readHello(c.stream)
	if err != nil {
		return Hello{}, err
	}
	c.stream.y.SetReadDeadline(time.Time{})
	h, err := parseHello(line)
	if err != nil {
		return Hello{}, err
	}
	if s.Known != nil && !s.Known(h.Upstream) {
		return h, errUnknown
	}
	return h, c.out.WriteLines([]byte(okLine))
}

// readHello reads the first line of s, and not a byte more.
func readHello(s *stream) ([]byte, error) {
	buf, n := make([]byte, maxHello), 0
	for n < len(buf) {
		k, err := s.Read(buf[n:])
		if errors.Is(err, yamux.ErrTimeout) {
			return nil, errLateHello
		}
		if err != nil {
			return nil, err
		}
		n += k
		switch i := bytes.IndexByte(buf[:n], '\n'); {
		case i == n-1:
			return buf[:i], nil
		case i >= 0:
			return nil, errHasty
		}
	}
	return nil, errLongHello
}
