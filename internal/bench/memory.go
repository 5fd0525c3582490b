package main

import (
	"errors"
	"time"
)

// footprint is the resident memory of the proxy alone, in bytes: without
// clients, and what each client adds.
type footprint struct {
	idle, connected, initialized float64
	clients, sessions            int // how many were connected, initialized
}

// settle is how long a process is left alone before its memory is read.
const settle = time.Second

// weigh fills in f for the WebSocket target ws.
func (f *footprint) weigh(ws target, prof profiler) (err error) {
	f.idle, f.connected, err = grow(ws, f.clients, dialWebSocket, prof.probe("connected"))
	if err != nil {
		return err
	}
	_, f.initialized, err = grow(ws, f.sessions, dialInitialized, prof.probe("initialized"))
	return err
}

// grow starts tgt and returns its memory before and, for each of n clients that
// dial makes, how much it takes more with them.
func grow(tgt target, n int, dial func(addr string) (*conn, error), pr probe) (idle, each float64, err error) {
	p, err := start(tgt.argv, pr.env()...)
	if err != nil {
		return 0, 0, err
	}
	s := &session{proc: p}
	defer func() { err = errors.Join(p.explain(err), s.end()) }()

	addr, err := p.address()
	if err != nil {
		return 0, 0, err
	}
	time.Sleep(settle)
	if idle, err = p.rss(); err != nil {
		return 0, 0, err
	}
	for range n {
		c, err := dial(addr)
		if err != nil {
			return idle, 0, err
		}
		s.conns = append(s.conns, c)
	}
	time.Sleep(settle)
	full, err := p.rss()
	if err != nil {
		return idle, 0, err
	}
	return idle, (full - idle) / float64(n), pr.collect(p)
}

func dialInitialized(addr string) (*conn, error) {
	c, err := dialWebSocket(addr)
	if err != nil {
		return nil, err
	}
	if err := c.initialize(); err != nil {
		return nil, err
	}
	return c, c.initialized()
}
