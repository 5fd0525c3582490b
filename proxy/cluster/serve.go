package cluster

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// maxStreams bounds the requests that one other member passes on at a time. It may have a stream for each event stream
// of a client.
const maxStreams = 1 << 16

// serve serves the requests of other members that dial l, until ctx ends.
func (c *Cluster) serve(ctx context.Context, l net.Listener) {
	in := &streams{addr: l.Addr(), next: make(chan net.Conn), over: make(chan struct{})}
	web := &http.Server{Handler: c.o.Handler, ErrorLog: slog.NewLogLogger(c.log.Handler(), slog.LevelDebug)}
	if mark := c.o.ConnContext; mark != nil {
		web.ConnContext = func(ctx context.Context, _ net.Conn) context.Context { return mark(ctx) }
	}
	defer context.AfterFunc(ctx, func() { web.Close() })()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _ = web.Serve(in) }) // until in or web is closed
	defer in.Close()
	links := &link.Server{Log: quiet(c.log), Streams: maxStreams, Bytes: in.serve, Known: func(string) bool { return false }}
	_ = links.Accept(ctx, &secured{l, c.carriers})
}

// secured is a listener for links from other members. As the listener of an [link.Endpoint], it does not wait for the
// handshake.
type secured struct {
	net.Listener
	all *carriers
}

// Accept implements net.Listener.
func (s *secured) Accept() (net.Conn, error) {
	c, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return s.all.server(c), nil
}

// streams are the streams of all links, as a listener of an http.Server.
type streams struct {
	addr net.Addr
	next chan net.Conn
	over chan struct{} // closed by Close
	once sync.Once
}

// serve passes c to the HTTP server, and returns when that has closed it.
func (s *streams) serve(c net.Conn) {
	one := &stream{Conn: c, closed: make(chan struct{})}
	select {
	case s.next <- one:
		<-one.closed
	case <-s.over:
	}
}

// Accept implements net.Listener.
func (s *streams) Accept() (net.Conn, error) {
	select {
	case c := <-s.next:
		return c, nil
	case <-s.over:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (s *streams) Close() error {
	s.once.Do(func() { close(s.over) })
	return nil
}

// Addr implements net.Listener.
func (s *streams) Addr() net.Addr { return s.addr }

// A stream tells when it is closed.
type stream struct {
	net.Conn
	closed chan struct{}
	once   sync.Once
}

// Close implements net.Conn.
func (s *stream) Close() error {
	err := s.Conn.Close()
	s.once.Do(func() { close(s.closed) })
	return err
}
