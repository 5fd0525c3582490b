package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"text/tabwriter"
	"time"
)

// A pair is one way from a client to the echo server, through a proxy that operators can
// look into and through one that they cannot.
type pair struct {
	name    string
	off, on target
	socket  string  // where operators look into on
	look    string  // the path that one of them reads there all the time; "" for none
	aim     float64 // the share by which a call may be slower, and fewer may pass
}

// pairs writes the configurations of all pairs and returns them.
func (b programs) pairs() (all []pair, err error) {
	for _, p := range []pair{
		{name: "stdio", off: target{argv: b.stdio(alone), open: openStdio}},
		{name: "websocket", off: b.webSocket(alone)},
		{name: "http", off: target{argv: b.serve(alone), serves: true, open: openHTTP}},
	} {
		tapped := p
		if p, err = b.watched(p, "", 0.02); err != nil {
			return nil, err
		}
		all = append(all, p)
		for _, look := range []struct{ name, path string }{{", tapped", "/tap"}, {", tapped without a rate", "/tap?rate=0"}} {
			watched := tapped
			watched.name += look.name
			if watched, err = b.watched(watched, look.path, 0.15); err != nil {
				return nil, err
			}
			all = append(all, watched)
		}
	}
	return all, nil
}

// watched returns p with operators, one of whom reads look.
func (b programs) watched(p pair, look string, aim float64) (pair, error) {
	config := fmt.Sprintf("watched-%s", p.name)
	p.look, p.aim, p.socket = look, aim, b.file(config+".sock")
	p.on = p.off
	p.on.argv = append([]string{}, p.off.argv...)
	for i, arg := range p.on.argv {
		if arg == b.config(alone) {
			p.on.argv[i] = b.config(config)
		}
	}
	p.off.env = []string{"XDG_RUNTIME_DIR=" + b.file("none/at/all")} // no socket either
	text := fmt.Sprintf(`{"upstreams": {"echo": {"command": %q, "era": "legacy"}}, "limits": {"sessions": 4096}, "admin": {"listen": [%q]}}`, b.echo, "unix://"+p.socket)
	return p, os.WriteFile(b.config(config), []byte(text), 0o600)
}

// operators compares what it costs that operators can look in. The two of a pair run at the
// same time and take turns, a slice of a round each, so that noise hits them alike.
func operators(w io.Writer, b programs, o options) error {
	all, err := b.pairs()
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "with operators over without: medians of %d pairs ± two standard errors, and of the best tenth of turns, which others disturbed least\n", shortTurns*o.rounds)
	fmt.Fprintln(t, "\tp50\t× off\t\tbest\taim\tcalls/s\t× off\t\tbest\taim\tCPU/call\t× off\t")
	for _, p := range all {
		if len(o.pairs) > 0 && !slices.Contains(o.pairs, p.name) {
			continue
		}
		off, on, err := p.compare(o)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		p.print(t, off, on)
	}
	return t.Flush()
}

// shortTurns is into how many turns a part of a round is cut: many, since little is looked
// for.
const shortTurns = 20

// A turn is what one slice of a round says of one of the two.
type turn struct {
	p50       time.Duration
	perSecond float64
	calls     float64
	cpu       time.Duration // of the proxy, for all these calls
}

func (p pair) compare(o options) (off, on []turn, err error) {
	var both [2]*session
	defer func() {
		for _, s := range both {
			if s != nil {
				err = errors.Join(err, s.end())
			}
		}
	}()
	for i, tgt := range []target{p.off, p.on} {
		if both[i], err = tgt.begin(probe{}); err != nil {
			return nil, nil, err
		}
		if _, err := both[i].oneByOne(0, o.part); err != nil { // a while that does not count
			return nil, nil, both[i].explain(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	if err := p.reads(ctx); err != nil {
		return nil, nil, both[1].explain(err)
	}
	for round := range shortTurns * o.rounds {
		var pair [2]turn
		for i := range both {
			at := (i + round) % len(both)
			if pair[at], err = both[at].turn(o.part / shortTurns); err != nil {
				return nil, nil, both[at].explain(err)
			}
		}
		off, on = append(off, pair[0]), append(on, pair[1])
	}
	return off, on, nil
}

// turn measures one of the two for twice d.
func (s *session) turn(d time.Duration) (t turn, err error) {
	times, err := s.oneByOne(0, d)
	if err != nil {
		return t, err
	}
	t.p50 = quantile(times, 0.5)
	before := s.procs[0].cpu()
	if t.perSecond, err = s.together(d); err != nil {
		return t, err
	}
	t.cpu, t.calls = s.procs[0].cpu()-before, t.perSecond*d.Seconds()
	return t, nil
}

func (p pair) print(w io.Writer, off, on []turn) {
	slower, more := make([]float64, len(on)), make([]float64, len(on))
	var sums [2]turn
	for i := range on {
		slower[i], more[i] = over(on[i].p50, off[i].p50), on[i].perSecond/off[i].perSecond
		for which, t := range []turn{off[i], on[i]} {
			sums[which].cpu += t.cpu
			sums[which].calls += t.calls
		}
	}
	each := func(t turn) time.Duration { return time.Duration(float64(t.cpu) / t.calls) }
	took, share := spread(slower), spread(more)
	fastest := func(turns []turn) time.Duration { return best(turns, func(t turn) time.Duration { return t.p50 }) }
	most := func(turns []turn) float64 { return 1 / best(turns, func(t turn) float64 { return 1 / t.perSecond }) }
	leastTook, bestShare := over(fastest(on), fastest(off)), most(on)/most(off)
	fmt.Fprintf(w, "%s\t%s\t%.3f\t± %.3f\t%.3f\t%s\t%.0f\t%.3f\t± %.3f\t%.3f\t%s\t%s\t%.3f\t\n", p.name,
		micro(middle(on, func(t turn) time.Duration { return t.p50 })), took.middle, took.error, leastTook, atMost(leastTook, 1+p.aim, fmt.Sprint(1+p.aim)),
		middle(on, func(t turn) float64 { return t.perSecond }), share.middle, share.error, bestShare, atLeast(bestShare, 1-p.aim),
		micro(each(sums[1])), over(each(sums[1]), each(sums[0])))
}

// best is the median of the lowest tenth.
func best[T time.Duration | float64](turns []turn, of func(turn) T) T {
	all := make([]T, len(turns))
	for i, t := range turns {
		all[i] = of(t)
	}
	slices.Sort(all)
	return quantile(all, 0.05)
}

// reads has an operator read what there is to be read, if anything, until ctx ends.
func (p pair) reads(ctx context.Context) error {
	if p.look == "" {
		return nil
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", p.socket)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+p.look, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial}}
	resp, err := client.Do(r) //nolint:bodyclose // closed when all is read
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return fmt.Errorf("GET %s: %s", p.look, resp.Status)
	}
	go func() {
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body) // until stop
	}()
	return nil
}

// A ratio is the median of several, and how far another median might be from it: about two
// standard errors, from the deviations from the median.
type ratio struct{ middle, error float64 }

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
