package main

import (
	"context"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A memoryServer is a server's end of a Conn.
type memoryServer struct {
	*partyConn
	serves *connection
	ctx    context.Context
	end    context.CancelFunc
}

// newMemoryServer returns a server that is not run yet. relates is whether its messages say to which request they belong.
func newMemoryServer(s *server, relates bool, c *partyConn) *memoryServer {
	m := &memoryServer{partyConn: c}
	m.ctx, m.end = context.WithCancel(context.Background())
	m.serves = newConnection(s, func(request string, what *message) {
		if !relates {
			request = ""
		}
		c.push(what, request)
	})
	return m
}

func (s *memoryServer) run() {
	defer s.end()
	_ = s.read(func(m *message, _ string) { s.serves.handle(s.ctx, m) })
}

// kill ends the server in one of the ways in which servers end.
func (s *memoryServer) kill(way int) {
	switch way {
	case 0: // its process is killed
		s.end()
		_ = s.CloseCause(&jsonrpc.ClosedError{Cause: jsonrpc.SignalCause("killed"), Delivered: true})
	case 1: // its connection breaks
		s.end()
		s.stop()
	case 2: // it closes its output, and goes on
		s.finish()
	}
}

// A memoryRegister is a register that all servers of a name share.
type memoryRegister struct {
	mu     sync.Mutex
	values map[string]int
}

func (r *memoryRegister) apply(a call) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a.change(r.values)
	return r.values[a.Key], nil
}
