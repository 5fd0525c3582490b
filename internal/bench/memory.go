package main

import (
	"errors"
	"fmt"
	"time"
)

// A group is many WebSocket clients, whose weight in the memory of the proxy
// alone is measured, and in that of the host behind it.
type group struct {
	name       string // of its profiles
	text       string // for the report
	tgt        target
	clients    int
	initialize bool    // they are not only connected
	aim        float64 // bytes for each in the proxy; zero means none
}

func (b programs) groups() []group {
	far := b.host(shared, b.socket())
	return []group{
		{"connected", "connected WebSocket clients", b.webSocket(alone), 1000, false, 30 * kib},
		{"initialized", "initialized ones", b.webSocket(alone), 200, true, 80 * kib},
		{"shared", "that share a server", b.webSocket(shared), 1000, true, 0},
		{"linked", "that share one on a Unix link", b.webSocket(linked, far...), 1000, true, 0},
	}
}

// A weight is the resident memory of a process, in bytes: without clients, and
// what each of them adds.
type weight struct{ idle, each float64 }

// settle is how long a process is left alone before its memory is read.
const settle = time.Second

// weighAll returns what weigh does for each of groups.
func weighAll(groups []group, pr profiler) (weights [][]weight, err error) {
	for _, g := range groups {
		w, err := g.weigh(pr.probe(g.name).ofMemory())
		if err != nil {
			return nil, fmt.Errorf("weigh clients %s: %w", g.text, err)
		}
		weights = append(weights, w)
	}
	return weights, nil
}

// weigh returns the weights of the proxy and, if there is one, the host.
func (g group) weigh(pr probe) (weights []weight, err error) {
	s, err := g.tgt.launch(pr)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(s.explain(err), s.end()) }()

	idle, err := s.rss()
	if err != nil {
		return nil, err
	}
	if err := s.admit(g); err != nil {
		return nil, err
	}
	full, err := s.rss()
	if err != nil {
		return nil, err
	}
	for i := range full {
		weights = append(weights, weight{idle[i], (full[i] - idle[i]) / float64(g.clients)})
	}
	return weights, pr.collect(g.tgt)
}

// admit adds the clients of g.
func (s *session) admit(g group) error {
	for range g.clients {
		client, err := g.tgt.open(s.procs[0])
		if err != nil {
			return err
		}
		if !g.initialize {
			s.add(client)
		} else if _, err := s.greet(client); err != nil {
			return err
		}
	}
	return nil
}

// rss returns the resident memory of each process in bytes, when all is quiet.
func (s *session) rss() (sizes []float64, err error) {
	time.Sleep(settle)
	for _, p := range s.procs {
		size, err := p.rss()
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, size)
	}
	return sizes, nil
}
