package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// A target is one way from a client to the echo server.
type target struct {
	name string
	argv []string
	// open returns the first connection to the started process.
	open func(p *process) (*conn, error)
	// more is how many further connections it takes to have 64 calls in flight.
	more int
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
		{name: "websocket", argv: serve, open: openWebSocket},
		{name: "http", argv: serve, open: openHTTP, more: width - 1},
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
	proc  *process
	conns []*conn       // the first made the handshake
	first time.Duration // from the start of the process to its first answer
}

// begin starts tgt and opens a session through it.
func (tgt target) begin(env ...string) (*session, error) {
	started := time.Now()
	p, err := start(tgt.argv, env...)
	if err != nil {
		return nil, err
	}
	s := &session{proc: p}
	if err := s.handshake(tgt, started); err != nil {
		return nil, errors.Join(p.explain(err), s.end())
	}
	return s, nil
}

func (s *session) handshake(tgt target, started time.Time) error {
	c, err := tgt.open(s.proc)
	if err != nil {
		return err
	}
	s.conns = append(s.conns, c)
	if err := c.initialize(); err != nil {
		return err
	}
	s.first = time.Since(started)
	if err := c.initialized(); err != nil {
		return err
	}
	for range tgt.more {
		w := c.wire.(*httpWire)
		another, err := dialHTTP(w.host, w.session)
		if err != nil {
			return err
		}
		s.conns = append(s.conns, another)
	}
	return nil
}

// end closes the connections and stops the process.
func (s *session) end() error {
	for _, c := range s.conns {
		c.w.Close() // stop reports what matters
	}
	return s.proc.stop()
}
