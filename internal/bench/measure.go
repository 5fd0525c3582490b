package main

import (
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	width = 64      // calls at a time
	big   = 1 << 20 // bytes of a big result
)

// A sample is what one round says of one target.
type sample struct {
	p50, p99, big, first time.Duration
	perSecond            float64
	idle, memory         float64       // of the proxy, resident, before all of that and after
	cpu                  time.Duration // of all proxies, for each of many calls at a time; zero if unknown
}

// measure takes one sample; each of its three parts lasts for d.
func measure(tgt target, d time.Duration) (sample, error) {
	s, err := tgt.begin(probe{})
	if err != nil {
		return sample{}, err
	}
	m := sample{first: s.first}
	err = s.explain(s.measure(&m, d))
	if endErr := s.end(); err == nil {
		err = endErr
	}
	return m, err
}

func (s *session) measure(m *sample, d time.Duration) (err error) {
	if m.idle, err = s.procs[0].rss(); err != nil {
		return err
	}
	times, err := s.warmed(d)
	if err != nil {
		return err
	}
	m.p50, m.p99 = quantile(times, 0.50), quantile(times, 0.99)

	if m.perSecond, m.cpu, err = s.together(d); err != nil {
		return err
	}
	times, err = s.oneByOne(big, d)
	if err != nil {
		return err
	}
	m.big = quantile(times, 0.50)
	m.memory, err = s.procs[0].rss()
	return err
}

// warmed is oneByOne with small results, after a while that does not count.
func (s *session) warmed(d time.Duration) ([]time.Duration, error) {
	if _, err := s.oneByOne(0, d/4); err != nil {
		return nil, err
	}
	return s.oneByOne(0, d)
}

// oneByOne makes one call after another for d, with results of size bytes, and
// returns how long each took, in order of length.
func (s *session) oneByOne(size int, d time.Duration) ([]time.Duration, error) {
	c := s.callers[0]
	times := make([]time.Duration, 0, 1<<16)
	for end := time.Now().Add(d); time.Now().Before(end); {
		begin := time.Now()
		if err := c.call(size); err != nil {
			return nil, err
		}
		times = append(times, time.Since(begin))
	}
	slices.Sort(times)
	return times, nil
}

// together has all callers call for d. It returns how many calls were answered per second, and
// how long processors worked for each of them in the proxies.
func (s *session) together(d time.Duration) (perSecond float64, cpu time.Duration, err error) {
	var g errgroup.Group
	var answered atomic.Int64
	before, begin := s.cpu(), time.Now()
	for _, c := range s.callers {
		g.Go(func() error {
			n, err := c.callUntil(begin.Add(d))
			answered.Add(n)
			return err
		})
	}
	err = g.Wait()
	n := max(answered.Load(), 1)
	return float64(n) / time.Since(begin).Seconds(), (s.cpu() - before) / time.Duration(n), err
}

// cpu returns how long processors have worked for the proxies: the process that clients reach,
// and the far one if it runs the same program.
func (s *session) cpu() (sum time.Duration) {
	for _, p := range s.procs {
		if p.cmd.Path == s.procs[0].cmd.Path {
			sum += p.cpu()
		}
	}
	return sum
}

func (c *caller) callUntil(end time.Time) (n int64, err error) {
	for ; time.Now().Before(end); n++ {
		if err := c.call(0); err != nil {
			return n, err
		}
	}
	return n, nil
}

// quantile returns the value below which the share q of sorted lies; zero if
// there is none.
func quantile[T any](sorted []T, q float64) (value T) {
	if len(sorted) == 0 {
		return value
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
