package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
)

// A pair is two targets that differ in one thing, whose cost is measured. Both run at the same
// time and take turns, so that noise hits them alike.
type pair struct {
	name       string
	base, with target
	// aim is the share by which calls through with may cost more and be fewer; zero means none.
	aim float64
	// size is that of the results of all calls, which are then made one after the other; zero means
	// small ones, and many at a time, too.
	size int
	// every is the time from one call to the next; zero means that there is none.
	every time.Duration
	// watch, unless it is nil, begins what goes on beside the calls until ctx ends.
	watch func(ctx context.Context) error
}

// turns is the number of turns into which each part of a round is cut.
const turns = 10

// A turn is what one of a pair did in one turn.
type turn struct {
	p50  time.Duration // of one call after another
	load               // of many at a time
}

// pairs returns the pairs that the command line asks for.
func (b programs) pairs(o options) (all []pair, err error) {
	if o.against != "" {
		all, err = b.against(o.against)
	} else {
		all, err = b.extras()
	}
	if len(o.pairs) == 0 || err != nil {
		return all, err
	}
	all = slices.DeleteFunc(all, func(p pair) bool { return !slices.Contains(o.pairs, p.name) })
	if len(all) != len(o.pairs) {
		return nil, fmt.Errorf("of the pairs %q there are only %d", o.pairs, len(all))
	}
	return all, nil
}

// against returns the pairs that differ in the proxy's binary.
func (b programs) against(binary string) (all []pair, err error) {
	base := b
	base.proxy, base.dir = binary, b.file("base") // and so with sockets of its own
	if err := os.Mkdir(base.dir, 0o700); err != nil {
		return nil, err
	}
	if err := errors.Join(base.writeConfigs(), b.writeToken(), base.writeToken()); err != nil {
		return nil, err
	}
	before, now := base.routes(), b.routes()
	for i := range now {
		all = append(all, pair{name: now[i].name, base: before[i], with: now[i], aim: 0.03})
	}
	return all, nil
}

// routes returns the targets that tell what a change of the proxy costs.
func (b programs) routes() []target {
	return []target{
		{name: "stdio", argv: b.stdio(alone), open: openStdio},
		{name: "websocket", argv: b.serve(alone), serves: true, open: openWebSocket},
		{name: "http", argv: b.serve(alone), serves: true, open: openHTTP},
		{name: "http, token", argv: b.serve(byToken), serves: true, open: openHTTPWith(staticToken)},
		{name: "modern http", argv: b.serve(without), serves: true, open: openModern},
		{name: "remote http", far: []string{b.echo, "http"}, argv: b.serve(remote), serves: true, open: openHTTP},
		{name: "unix link", far: b.host(alone, b.socket()), argv: b.stdio(linked), open: openStdio},
	}
}

// measurePairs measures all pairs in every round, with fresh processes.
func measurePairs(all []pair, o options) (base, with [][]turn, err error) {
	base, with = make([][]turn, len(all)), make([][]turn, len(all))
	for round := range o.rounds {
		for i, p := range all {
			b, m, err := p.round(round, o.part)
			if err != nil {
				return nil, nil, fmt.Errorf("measure %s: %w", p.name, err)
			}
			base[i], with[i] = append(base[i], b...), append(with[i], m...)
		}
	}
	return base, with, nil
}

// comparePairs prints what pairs differ in.
func comparePairs(w io.Writer, all []pair, o options) error {
	base, with, err := measurePairs(all, o)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "medians of %d pairs of turns in %d rounds, and their ratios ± two standard errors\n", turns*o.rounds, o.rounds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\tcalls/s at %d\tbase\tratio\t\taim\tCPU/call\tbase\tratio\t\taim\tp50\tbase\tratio\t\t\n", width)
	for i, p := range all {
		p.print(t, base[i], with[i])
	}
	return t.Flush()
}

// round starts both of a pair and measures them in turn; part is how long each of its parts
// lasts for each of them.
func (p pair) round(round int, part time.Duration) (base, with []turn, err error) {
	var both [2]*session
	defer func() {
		for _, s := range both {
			if s != nil {
				err = errors.Join(err, s.end())
			}
		}
	}()
	for i, tgt := range [...]target{p.base, p.with} {
		if both[i], err = tgt.begin(probe{}); err != nil {
			return nil, nil, err
		}
		if _, err = both[i].together(part); err != nil { // does not count: it warms up
			return nil, nil, both[i].explain(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if p.watch != nil {
		if err := p.watch(ctx); err != nil {
			return nil, nil, both[1].explain(err)
		}
	}
	if p.every > 0 {
		return p.rarely(both, part)
	}
	var measured [2][]turn
	for i := range 2 * turns {
		at := (round + i + i/2) % 2 // base with, with base, base with
		t, err := both[at].turn(p.size, part/turns)
		if err != nil {
			return nil, nil, both[at].explain(err)
		}
		measured[at] = append(measured[at], t)
	}
	return measured[0], measured[1], nil
}

// rarely calls both at the same time, since neither has much to do. What they do after a call counts, too.
func (p pair) rarely(both [2]*session, d time.Duration) (base, with []turn, err error) {
	time.Sleep(settle)
	var measured [2][]turn
	var g errgroup.Group
	for i, s := range both {
		g.Go(func() error {
			t, err := s.rare(p.every, d)
			if err != nil {
				return s.explain(err)
			}
			measured[i] = []turn{t}
			return nil
		})
	}
	err = g.Wait()
	return measured[0], measured[1], err
}

// rare makes a call every so often for d.
func (s *session) rare(every, d time.Duration) (t turn, err error) {
	var times []time.Duration
	tick := time.NewTicker(every)
	defer tick.Stop()
	before := s.usage()
	for range max(d/every, 1) {
		<-tick.C
		begin := time.Now()
		if err := s.callers[0].call(0); err != nil {
			return t, err
		}
		times = append(times, time.Since(begin))
	}
	<-tick.C
	t.calls, t.proxies = float64(len(times)), s.usage().less(before)
	slices.Sort(times)
	t.p50 = quantile(times, 0.5)
	return t, nil
}

// turn calls one by one for d, and together for d if results are small.
func (s *session) turn(size int, d time.Duration) (t turn, err error) {
	times, err := s.oneByOne(size, d)
	if t.p50 = quantile(times, 0.5); size > 0 || err != nil {
		return t, err
	}
	t.load, err = s.together(d)
	return t, err
}

// print writes the line of a pair; turns with the same index are set against each other.
func (p pair) print(w io.Writer, base, with []turn) {
	was, is, rate := compared(base, with, turn.rate)
	fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%s\t", p.name, is.middle, was.middle, rate)
	was, is, cost := compared(base, with, turn.cost)
	fmt.Fprintf(w, "%s\t%.1f µs\t%.1f µs\t%s\t", p.verdict(atLeast(rate.middle, 1-p.aim)), is.middle, was.middle, cost)
	was, is, wait := compared(base, with, turn.wait)
	fmt.Fprintf(w, "%s\t%.0f µs\t%.0f µs\t%s\t\n", p.verdict(atMost(cost.middle, 1+p.aim, fmt.Sprint(1+p.aim))), is.middle, was.middle, wait)
}

// compared sets turns with the same index against each other.
func compared(base, with []turn, of func(turn) float64) (b, m, r ratio) {
	ratios := make([]float64, len(with))
	was, is := slices.Clone(ratios), slices.Clone(ratios)
	for i := range with {
		was[i], is[i] = of(base[i]), of(with[i])
		ratios[i] = is[i] / was[i]
	}
	return spread(was), spread(is), spread(ratios)
}

// What is compared: calls per second, and microseconds.
func (t turn) rate() float64 { return t.perSecond }
func (t turn) cost() float64 { return float64(t.cpu()) / 1e3 }
func (t turn) wait() float64 { return float64(t.p50) / 1e3 }

// verdict is text, of a pair that has an aim.
func (p pair) verdict(text string) string {
	if p.aim == 0 {
		return ""
	}
	return text
}

// A ratio is the median of several, or of other values, and how far another median might be from it: about two
// standard errors, from the deviations from the median.
type ratio struct{ middle, error float64 }

func (r ratio) String() string { return fmt.Sprintf("%.3f\t± %.3f", r.middle, r.error) }

func spread(ratios []float64) ratio {
	same := func(r float64) float64 { return r }
	m := middle(ratios, same)
	off := make([]float64, len(ratios))
	for i, r := range ratios {
		off[i] = math.Abs(r - m)
	}
	// 1.48 deviations are a standard deviation, and the error of a median 1.25 of those of a mean.
	return ratio{m, 2 * 1.25 * 1.48 * middle(off, same) / math.Sqrt(float64(len(ratios)))}
}
