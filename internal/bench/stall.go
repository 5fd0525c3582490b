package main

import (
	"bufio"
	"errors"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// A stall is the p50 of one client's calls before and while another client,
// with a server of its own on the same link, does not read what that sends.
type stall struct{ before, during time.Duration }

// stalls returns the median of each over all rounds.
func stalls(tgt target, o options) (stall, error) {
	var all []stall
	for range o.rounds {
		st, err := measureStall(tgt, o.part)
		if err != nil {
			return stall{}, err
		}
		all = append(all, st)
	}
	return stall{
		before: middle(all, func(st stall) time.Duration { return st.before }),
		during: middle(all, func(st stall) time.Duration { return st.during }),
	}, nil
}

func measureStall(tgt target, d time.Duration) (st stall, err error) {
	s, err := tgt.begin(probe{})
	if err != nil {
		return st, err
	}
	defer func() { err = errors.Join(s.explain(err), s.end()) }()

	c, err := tgt.open(s.procs[0])
	if err != nil {
		return st, err
	}
	reading := &gate{r: c.r}
	c.r, c.several = bufio.NewReaderSize(reading, 64<<10), true
	if err := s.join(c); err != nil {
		return st, err
	}
	if st.before, err = s.p50(d); err != nil {
		return st, err
	}

	reading.mu.Lock()
	var flood errgroup.Group
	for range width {
		flood.Go(func() error { return c.caller(s.nextID).call(big) })
	}
	time.Sleep(settle) // all buffers are full
	st.during, err = s.p50(d)
	reading.mu.Unlock()
	return st, errors.Join(err, flood.Wait())
}

// p50 is that of the first client's calls.
func (s *session) p50(d time.Duration) (time.Duration, error) {
	times, err := s.warmed(d)
	return quantile(times, 0.50), err
}

// A gate reads from r, and then waits while mu is held.
type gate struct {
	r  io.Reader
	mu sync.Mutex
}

func (g *gate) Read(p []byte) (int, error) {
	n, err := g.r.Read(p)
	g.mu.Lock()
	defer g.mu.Unlock()
	return n, err
}
