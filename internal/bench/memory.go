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
	f.idle, f.connected, err = grow(ws, f.clients, false, prof.probe("connected").ofMemory())
	if err != nil {
		return err
	}
	_, f.initialized, err = grow(ws, f.sessions, true, prof.probe("initialized").ofMemory())
	return err
}

// grow starts tgt and returns its memory before and, for each of n WebSocket
// clients, how much it takes more with them, connected only or also initialized.
func grow(tgt target, n int, initialize bool, pr probe) (idle, each float64, err error) {
	p, err := start(tgt.argv, tgt.serves, pr.env()...)
	if err != nil {
		return 0, 0, err
	}
	s := &session{proc: p}
	defer func() { err = errors.Join(p.explain(err), s.end()) }()

	time.Sleep(settle)
	if idle, err = p.rss(); err != nil {
		return 0, 0, err
	}
	addr, err := p.address()
	if err != nil {
		return idle, 0, err
	}
	for range n {
		if err := s.join(addr, initialize); err != nil {
			return idle, 0, err
		}
	}
	time.Sleep(settle)
	full, err := p.rss()
	if err != nil {
		return idle, 0, err
	}
	return idle, (full - idle) / float64(n), pr.collect()
}

// join adds a WebSocket client.
func (s *session) join(addr string, initialize bool) error {
	c, err := dialWebSocket(addr)
	if err != nil {
		return err
	}
	client := s.add(c)
	if !initialize {
		return nil
	}
	if err := client.initialize(); err != nil {
		return err
	}
	return client.initialized()
}
