package main

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"strconv"
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

	many, err := s.together(d)
	if err != nil {
		return err
	}
	m.perSecond, m.cpu = many.perSecond, many.cpu()
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

// A load is what many calls at a time took.
type load struct {
	calls     float64
	perSecond float64
	proxies   usage         // of the process that clients reach, and of the far one if it runs the same program
	own       time.Duration // processor time of this one
}

// cpu is how long processors worked for each call in the proxies.
func (l load) cpu() time.Duration { return l.proxies.cpu / time.Duration(max(l.calls, 1)) }

// together has as many calls in flight for d as there are callers, on their connections.
func (s *session) together(d time.Duration) (l load, err error) {
	var g errgroup.Group
	var answered atomic.Int64
	callers := map[*conn]int{}
	for _, c := range s.callers {
		callers[c.conn]++
	}
	before, own, begin := s.usage(), ownCPU(), time.Now()
	for c, n := range callers {
		g.Go(func() error {
			n, err := c.keep(n, s.nextID, begin.Add(d))
			answered.Add(n)
			return err
		})
	}
	err = g.Wait()
	l.calls = float64(max(answered.Load(), 1))
	l.perSecond = l.calls / time.Since(begin).Seconds()
	l.proxies, l.own = s.usage().less(before), ownCPU()-own
	return l, err
}

// usage is that of the proxies: the process that clients reach, and the far one if it runs the
// same program.
func (s *session) usage() (sum usage) {
	for _, p := range s.procs {
		if p.cmd.Path == s.procs[0].cmd.Path {
			sum = sum.plus(p.usage(), 1)
		}
	}
	return sum
}

// firstPrepared is the least id of a prepared call: all have the same length.
const firstPrepared = 1_000_000_000

// keep has n calls in flight until end, and returns how many were answered. It costs as little
// as it can, so that it is not what is measured: the bytes of a call are prepared, but for the id.
func (c *conn) keep(n int, nextID func() int, end time.Time) (answered int64, err error) {
	call := c.caller(nextID)
	call.compose(firstPrepared, "tools/call", called(c.prefix+"echo", 0))
	framed := c.wire.frame(nil, call.msg)
	at := bytes.Index(framed, strconv.AppendInt([]byte(`"id":`), firstPrepared, 10)) + len(`"id":`)
	owed := 0 // the sum of the ids of calls without an answer
	send := func() error {
		id := firstPrepared + nextID()
		owed += id
		strconv.AppendInt(framed[:at], int64(id), 10)
		_, err := c.w.Write(framed)
		return err
	}
	for range n {
		if err := send(); err != nil {
			return 0, err
		}
	}
	for open := n; open > 0; answered++ {
		id, a, err := c.read()
		if err = cmp.Or(err, a.err); err != nil {
			return answered, err
		}
		owed -= id
		if time.Now().After(end) {
			open--
		} else if err := send(); err != nil {
			return answered, err
		}
	}
	if owed != 0 {
		return answered, errors.New("answers to other calls than those that were made")
	}
	return answered, nil
}

// quantile returns the value below which the share q of sorted lies; zero if
// there is none.
func quantile[T any](sorted []T, q float64) (value T) {
	if len(sorted) == 0 {
		return value
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
