package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// A target is one way from a client to the echo server.
type target struct {
	name string
	argv []string
	// serves says that it is reached over the network.
	serves bool
	// open returns the first connection to the started process.
	open func(p *process) (*conn, error)
}

// programs are the paths of what is measured.
type programs struct {
	proxy, echo, relay string
	config             string // of the proxy, in front of echo
}

// targets returns all that is measured; the second is the measure of the rest.
func (b programs) targets() []target {
	serve := []string{b.proxy, "serve", "--config", b.config, "--listen", "127.0.0.1:0"}
	return []target{
		{name: "direct", argv: []string{b.echo}, open: openStdio},
		{name: "relay", argv: []string{b.relay, b.echo}, open: openStdio},
		{name: "stdio", argv: []string{b.proxy, "stdio", "--config", b.config}, open: openStdio},
		{name: "websocket", argv: serve, serves: true, open: openWebSocket},
		{name: "http", argv: serve, serves: true, open: openHTTP},
	}
}

// writeConfig writes the proxy's configuration into dir: one upstream, and room
// for all clients.
func writeConfig(dir, echo string) (string, error) {
	path := filepath.Join(dir, "mcp-proxy.json")
	config := fmt.Sprintf(`{"upstreams": {"echo": {"command": %q}}, "limits": {"sessions": 4096}}`, echo)
	return path, os.WriteFile(path, []byte(config), 0o600)
}

func openStdio(p *process) (*conn, error) {
	return newConn(&lineWire{}, p.out, p.in), nil
}

func openWebSocket(p *process) (*conn, error) {
	addr, err := p.address()
	if err != nil {
		return nil, err
	}
	return dialWebSocket(addr)
}

func openHTTP(p *process) (*conn, error) {
	addr, err := p.address()
	if err != nil {
		return nil, err
	}
	return dialHTTP(addr, "")
}

// A session is a started target that answers calls.
type session struct {
	proc    *process
	conns   []*conn
	callers []*caller
	first   time.Duration // from the start of the process to its first answer

	ids     atomic.Int64
	readers sync.WaitGroup // the readLoop of each conn
}

// begin starts tgt and opens a session through it.
func (tgt target) begin(env ...string) (*session, error) {
	started := time.Now()
	p, err := start(tgt.argv, tgt.serves, env...)
	if err != nil {
		return nil, err
	}
	s := &session{proc: p}
	if err := s.handshake(tgt, started); err != nil {
		return nil, errors.Join(p.explain(err), s.end())
	}
	return s, nil
}

// handshake initializes the session and makes its callers, which share the first
// connection or have one each.
func (s *session) handshake(tgt target, started time.Time) error {
	c, err := tgt.open(s.proc)
	if err != nil {
		return err
	}
	first := s.add(c)
	if err := first.initialize(); err != nil {
		return err
	}
	s.first = time.Since(started)
	if err := first.initialized(); err != nil {
		return err
	}
	for len(s.callers) < width {
		w, each := c.wire.(*httpWire)
		if !each {
			s.callers = append(s.callers, c.caller(s.nextID))
			continue
		}
		another, err := dialHTTP(w.host, w.session)
		if err != nil {
			return err
		}
		s.add(another)
	}
	return nil
}

// add takes c over and returns its first caller.
func (s *session) add(c *conn) *caller {
	s.conns = append(s.conns, c)
	s.readers.Go(c.readLoop)
	s.callers = append(s.callers, c.caller(s.nextID))
	return s.callers[len(s.callers)-1]
}

func (s *session) nextID() int { return int(s.ids.Add(1)) }

// end closes the connections and stops the process.
func (s *session) end() error {
	for _, c := range s.conns {
		c.w.Close() // stop reports what matters
	}
	err := s.proc.stop()
	s.readers.Wait()
	return err
}
