package remote

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
)

// inBubble runs a test in which time is synctest's, with a fake that is reached through
// memory: by what reach has prepared.
func inBubble(t *testing.T, test func(t *testing.T, f *fake)) {
	synctest.Test(t, func(t *testing.T) {
		f := unstarted(t)
		f.pipes = &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		f.Listener.Close()
		f.Listener = f.pipes
		f.start()
		test(t, f)
	})
}

// reach returns s as it was, and has it connect to f, wherever f is.
func (f *fake) reach(s *Server) *Server {
	if f.pipes != nil {
		t := s.prepare()
		t.client.Transport.(onceTransport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := f.pipes.dial(ctx)
			return &timeoutConn{Conn: c, timeout: t.writeTimeout}, err
		}
		f.t.Cleanup(s.Close)
	}
	return s
}

// pipes are a listener of connections in memory. They hold nothing: a write waits for
// the read.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "localhost", Net: "pipe"} }
