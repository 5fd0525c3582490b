package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A goal is a row of what the proxy must cost no more than: a figure of a path, beside that of
// the floor, which is the least that such a path can cost.
type goal struct {
	path, figure string
	here, floor  string // with the noise; "" for none
	over         *ratio // of here to the floor; nil for none
	aim          string // with a verdict; "" for none
}

// A lightPart is some rows of the table, measured by themselves.
type lightPart struct {
	name string
	run  func(programs, options) ([]goal, error)
}

var lightParts = []lightPart{
	{"cpu", programs.lightCPU},
	{"http", programs.lightHTTP},
	{"rare", programs.lightRare},
	{"link", programs.lightLink},
	{"big", programs.lightBig},
	{"memory", programs.lightMemory},
	{"crowd", programs.lightCrowd},
	{"waiting", programs.lightWaiting},
	{"size", programs.lightSize},
	{"hooks", programs.lightHooks},
}

// light prints the parts of the table whose names are in list, or all.
func light(w io.Writer, b programs, list string, o options) error {
	names := strings.Split(list, ",")
	if list != "all" {
		for _, name := range names {
			if !slices.ContainsFunc(lightParts, func(p lightPart) bool { return p.name == name }) {
				return fmt.Errorf("-light %s: there is no such part", name)
			}
		}
	}
	fmt.Fprintf(w, "%d rounds of %s; ± is two standard errors\n", o.rounds, o.part)
	for _, part := range lightParts {
		if list != "all" && !slices.Contains(names, part.name) {
			continue
		}
		begin := time.Now()
		rows, err := part.run(b, o)
		if err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		fmt.Fprintf(w, "\n%s, in %.0f s\n", part.name, time.Since(begin).Seconds())
		if err := printGoals(w, rows); err != nil {
			return err
		}
	}
	return nil
}

func printGoals(w io.Writer, rows []goal) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "path\tfigure\there\tfloor\tratio\tgoal")
	for _, g := range rows {
		over := ""
		if g.over != nil {
			over = fmt.Sprintf("%.2f ± %.2f", g.over.middle, g.over.error)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", g.path, g.figure, g.here, g.floor, over, g.aim)
	}
	return t.Flush()
}

// compare returns a row of what the turns of a pair say.
func (p pair) goal(figure, format string, base, with []turn, of func(turn) float64) goal {
	b, m, r := compared(base, with, of)
	write := func(v ratio) string { return fmt.Sprintf(format, v.middle) + " ± " + fmt.Sprintf(format, v.error) }
	return goal{path: p.name, figure: figure, here: write(m), floor: write(b), over: &r}
}

// below and above say what the ratio of g must be.
func (g goal) below(limit float64) goal {
	g.aim = atMost(g.over.middle, limit, fmt.Sprintf("%.2f ×", limit))
	return g
}

func (g goal) above(limit float64) goal {
	g.aim = fmt.Sprintf("≥ %.2f ×%s", limit, verdict(g.over.middle >= limit))
	return g
}

// inDark returns tgt without an address for operators, and so without metrics and taps: no directory can have
// its socket.
func (b programs) inDark(tgt target) target {
	none := b.file("none/at/all")
	tgt.env = []string{"XDG_RUNTIME_DIR=" + none, "TMPDIR=" + none}
	return tgt
}

// fronts returns the pairs of the proxy, which nobody watches, and the floor with the same front.
func (b programs) fronts() []pair {
	floor := func(mode string) []string { return []string{b.floor, mode, b.echo} }
	return []pair{
		{
			name: "stdio", base: target{argv: floor("stdio"), open: openStdio},
			with: b.inDark(target{argv: b.stdio(alone), open: openStdio}),
		},
		{
			name: "websocket", base: target{argv: floor("serve"), serves: true, open: openWebSocket},
			with: b.inDark(b.webSocket(alone)),
		},
		{
			name: "http", base: target{argv: floor("serve"), serves: true, open: openHTTP},
			with: b.inDark(target{argv: b.serve(alone), serves: true, open: openHTTP}),
		},
	}
}

// lightCPU has what a call costs of many at a time, without and with metrics.
func (b programs) lightCPU(o options) (rows []goal, err error) {
	var all []pair
	for _, p := range b.fronts() {
		seen, err := b.watched(pair{name: p.name, base: p.with})
		if err != nil {
			return nil, err
		}
		metrics := p
		metrics.name, metrics.with = seen[0].name, seen[0].with
		metrics.with.env = nil
		all = append(all, p, metrics)
	}
	all = append(all, pair{
		name: "the floor of stdio, over a relay of bytes", base: target{argv: []string{b.relay, b.echo}, open: openStdio}, with: all[0].base,
	}, pair{
		name: "the floor of stdio, over one with batches", base: target{argv: []string{b.floor, "batch", b.echo}, open: openStdio}, with: all[0].base,
	})
	base, with, err := measurePairs(all, o)
	if err != nil {
		return nil, err
	}
	for i, p := range all {
		cost, rate := p.goal("CPU per call, 64 in flight, µs", "%.1f", base[i], with[i], turn.cost), p.goal("calls/s", "%.0f", base[i], with[i], turn.rate)
		switch {
		case i >= len(all)-2: // nothing of ours
		case i%2 == 0:
			cost, rate = cost.below(1.05), rate.above(1)
		default:
			cost, rate = cost.below(1.08), rate.above(1)
		}
		rows = append(rows, cost, rate, p.goal("p50, one at a time, µs", "%.1f", base[i], with[i], turn.wait))
		if i%2 == 1 || i >= len(all)-2 {
			continue
		}
		rows = append(rows, p.details(base[i], with[i])...)
		more, err := b.allocated(p, o)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

// details returns what the costs of a call consist of.
func (p pair) details(base, with []turn) (rows []goal) {
	for _, detail := range []struct {
		figure, format string
		of             func(load) float64
	}{
		{"of that in the kernel, %", "%.0f", func(l load) float64 { return 100 * l.proxies.system.Seconds() / l.proxies.cpu.Seconds() }},
		{"context switches per call, waiting", "%.3f", func(l load) float64 { return l.proxies.waits / l.calls }},
		{"context switches per call, preempted", "%.3f", func(l load) float64 { return l.proxies.preempted / l.calls }},
		{"CPU of the load generator per call, µs", "%.1f", func(l load) float64 { return l.own.Seconds() * 1e6 / l.calls }},
	} {
		here, floor := detail.of(sumOf(with)), detail.of(sumOf(base))
		rows = append(rows, goal{path: p.name, figure: detail.figure, here: fmt.Sprintf(detail.format, here), floor: fmt.Sprintf(detail.format, floor)})
	}
	return rows
}

// sumOf has the calls of all turns.
func sumOf(turns []turn) (sum load) {
	for _, t := range turns {
		sum.calls, sum.own = sum.calls+t.calls, sum.own+t.own
		sum.proxies = sum.proxies.plus(t.proxies, 1)
	}
	return sum
}

// allocated returns what a pair allocates for each call.
func (b programs) allocated(p pair, o options) ([]goal, error) {
	if o.proxy != "" {
		return nil, nil // it does not count
	}
	here, err := b.allocations(p.with, o.part)
	if err != nil {
		return nil, err
	}
	floor, err := b.allocations(p.base, o.part)
	if err != nil {
		return nil, err
	}
	row := func(figure string, here, floor float64) goal {
		return goal{path: p.name, figure: figure, here: fmt.Sprintf("%.1f", here), floor: fmt.Sprintf("%.1f", floor), over: &ratio{middle: here / floor}}
	}
	return []goal{row("allocations per call", here.Allocs, floor.Allocs), row("bytes of that", here.Bytes, floor.Bytes)}, nil
}

// lightHTTP has calls from HTTP, to a process and to a remote server.
func (b programs) lightHTTP(o options) (rows []goal, err error) {
	far := []string{b.echo, "http"}
	all := []pair{b.fronts()[2], {
		name: "http to remote http", base: target{far: far, argv: []string{b.floor, "forward", "{far}"}, serves: true, open: openHTTP},
		with: b.inDark(target{far: far, argv: b.serve(remote), serves: true, open: openHTTP}),
	}}
	all[0].name = "http to process"
	base, with, err := measurePairs(all, o)
	if err != nil {
		return nil, err
	}
	for i, p := range all {
		rows = append(rows,
			p.goal("p50, one at a time, µs", "%.1f", base[i], with[i], turn.wait).below(1.15),
			p.goal("calls/s, 64 in flight", "%.0f", base[i], with[i], turn.rate),
			p.goal("CPU per call, µs", "%.1f", base[i], with[i], turn.cost))
		rows = append(rows, p.details(base[i], with[i])...)
	}
	return rows, nil
}

// lightRare has what a call costs that is alone for a while: most programs are idle between calls, and what wakes them
// then costs more than the call.
func (b programs) lightRare(o options) (rows []goal, err error) {
	all := b.fronts()
	for i := range all {
		all[i].every = 100 * time.Millisecond
	}
	base, with, err := measurePairs(all, o)
	if err != nil {
		return nil, err
	}
	for i, p := range all {
		rows = append(rows,
			p.goal("CPU per call, 10 calls/s, µs", "%.0f", base[i], with[i], turn.cost),
			p.goal("p50, µs", "%.0f", base[i], with[i], turn.wait))
		rows = append(rows, p.details(base[i], with[i])[1])
	}
	return rows, nil
}

// lightLink has what a link costs that is a socket, and for comparison another process in between
// that only copies bytes.
func (b programs) lightLink(o options) ([]goal, error) {
	base := b.fronts()[0].with
	all := []pair{{
		name: "stdio over a Unix link, to stdio in one process", base: base,
		with: b.inDark(target{far: b.host(alone, b.socket()), argv: b.stdio(linked), open: openStdio}),
	}, {
		name: "stdio behind a relay of bytes, likewise", base: base,
		with: b.inDark(target{argv: append([]string{b.relay}, b.stdio(alone)...), open: openStdio}),
	}}
	one, two, err := measurePairs(all, o)
	if err != nil {
		return nil, err
	}
	p := all[0]
	return []goal{
		p.goal("p50, one at a time, µs", "%.1f", one[0], two[0], turn.wait).below(1.35),
		p.goal("calls/s, 64 in flight", "%.0f", one[0], two[0], turn.rate),
		p.goal("CPU per call, µs", "%.1f", one[0], two[0], turn.cost),
		all[1].goal("p50, one at a time, µs", "%.1f", one[1], two[1], turn.wait),
	}, nil
}

// lightBig has large results.
func (b programs) lightBig(o options) (rows []goal, err error) {
	var all []pair
	for _, size := range []int{64 * kib, big} {
		for _, p := range b.fronts() {
			p.size = size
			all = append(all, p)
		}
	}
	base, with, err := measurePairs(all, o)
	if err != nil {
		return nil, err
	}
	for i, p := range all {
		rows = append(rows, p.goal(fmt.Sprintf("p50 of a result of %d KiB, µs", p.size/kib), "%.0f", base[i], with[i], turn.wait).below(1.15))
	}
	return rows, nil
}

// lightSize has the binary as it is released.
func (b programs) lightSize(options) ([]goal, error) {
	path := b.file("stripped")
	if err := goBuild(tree, path, "./cmd/mcp-proxy", "-ldflags=-s -w"); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	size := float64(info.Size()) / 1e6
	return []goal{{path: "binary, stripped", figure: "MB", here: fmt.Sprintf("%.1f", size), aim: atMost(size, 18, "18")}}, nil
}
