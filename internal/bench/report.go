package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// An aim is what a target should reach; zero means none. Times and calls are
// ratios to those of its base.
type aim struct {
	p50, perSecond float64
	first          time.Duration
}

// bridging is how much processor time the bridge between the eras may take of a
// call.
const bridging = 15 * time.Microsecond

var aims = map[string]aim{
	"stdio":     {p50: 1.5, perSecond: 0.40, first: 20 * time.Millisecond},
	"websocket": {p50: 1.7, perSecond: 0.25}, // 50,000 where the relay makes 200,000
	"http":      {p50: 2.5, perSecond: 0.125},
	"unix link": {p50: 1.25, perSecond: 0.80},

	"modern http": {p50: 1, perSecond: 1},
}

const kib, mib = 1 << 10, 1 << 20

// median is the sample whose every value is the median of that value.
func median(samples []sample) sample {
	duration := func(of func(sample) time.Duration) time.Duration { return middle(samples, of) }
	return sample{
		p50:       duration(func(s sample) time.Duration { return s.p50 }),
		p99:       duration(func(s sample) time.Duration { return s.p99 }),
		big:       duration(func(s sample) time.Duration { return s.big }),
		first:     duration(func(s sample) time.Duration { return s.first }),
		perSecond: middle(samples, func(s sample) float64 { return s.perSecond }),
		idle:      middle(samples, func(s sample) float64 { return s.idle }),
		memory:    middle(samples, func(s sample) float64 { return s.memory }),
		cpu:       duration(func(s sample) time.Duration { return s.cpu }),
	}
}

func middle[S any, T time.Duration | float64](samples []S, of func(S) T) T {
	values := make([]T, 0, len(samples))
	for _, s := range samples {
		values = append(values, of(s))
	}
	slices.Sort(values)
	return quantile(values, 0.5)
}

// printCalls writes the table of all targets, each set against its base.
func printCalls(w io.Writer, targets []target, medians map[string]sample) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\tbase\tp50\t× base\taim\tp99\tcalls/s at %d\tof base\taim\tCPU/call\taim\t1 MiB\t× base\tfirst answer\taim\t\n", width)
	for _, tgt := range targets {
		m, a := medians[tgt.name], aims[tgt.name]
		name := cmp.Or(tgt.base, "relay")
		base := medians[name]
		slower, share := over(m.p50, base.p50), m.perSecond/base.perSecond
		fmt.Fprintf(t, "%s\t%s\t%s\t%.2f\t%s\t%s\t%.0f\t%.1f %%\t%s\t%s\t%s\t%s\t%.2f\t%s\t%s\t\n", tgt.name, name,
			micro(m.p50), slower, atMost(slower, a.p50, fmt.Sprint(a.p50)), micro(m.p99),
			m.perSecond, 100*share, atLeast(share, a.perSecond),
			micro(m.cpu), tgt.atMostCPU(m.cpu-base.cpu),
			micro(m.big), over(m.big, base.big),
			micro(m.first), atMost(m.first.Seconds(), a.first.Seconds(), a.first.String()))
	}
	return t.Flush()
}

func printStall(w io.Writer, st stall) error {
	slower := over(st.during, st.before)
	_, err := fmt.Fprintf(w, "p50 on a Unix link: %s, with another stream stalled %s, × %.2f %s\n",
		micro(st.before), micro(st.during), slower, atMost(slower, 1.1, "1.1"))
	return err
}

// printWeights writes the table of all groups; weights are in their order.
func printWeights(w io.Writer, groups []group, weights [][]weight) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	idle := weights[0][0].idle
	fmt.Fprintf(t, "resident memory\tof the proxy\taim\tof the host\t\n")
	fmt.Fprintf(t, "idle\t%.1f MiB\t%s\t\t\n", idle/mib, atMost(idle, 15*mib, "15 MiB"))
	for i, g := range groups {
		each := weights[i][0].each
		fmt.Fprintf(t, "each of %d %s\t%.1f KiB\t%s\t", g.clients, g.text,
			each/kib, atMost(each, g.aim, fmt.Sprintf("%.0f KiB", g.aim/kib)))
		for _, host := range weights[i][1:] {
			fmt.Fprintf(t, "%.1f KiB", host.each/kib)
		}
		fmt.Fprintf(t, "\t\n")
	}
	return t.Flush()
}

// printLaziness writes the table of upstreams that start when they are needed.
func printLaziness(w io.Writer, l *laziness) error {
	const most, next, cost, each = 5 * time.Millisecond, 50 * time.Millisecond, 20 * time.Millisecond, 60 * kib
	within := func(d, limit time.Duration) string { return atMost(d.Seconds(), limit.Seconds(), limit.String()) }
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%d known upstreams that start when they are needed\t\taim\t\n", lazyUpstreams)
	for _, looks := range []struct {
		what  string
		times []time.Duration
	}{{"from connection to tools, p50, p99", l.look}, {"with one that hangs", l.hung}} {
		p50 := quantile(looks.times, 0.50)
		fmt.Fprintf(t, "%s\t%s, %s\t%s\t\n", looks.what, milli(p50), milli(quantile(looks.times, 0.99)), within(p50, most))
	}
	fmt.Fprintf(t, "from the start of the proxy\t%s\t%s\t\n", milli(l.again), within(l.again, next))
	fmt.Fprintf(t, "processes after that\t%d\t%s\t\n", l.processes, atMost(float64(l.processes), 0.5, "0"))
	fmt.Fprintf(t, "private memory for each of %d clients\t%.1f KiB\t%s\t\n", l.clients, l.each/kib, atMost(l.each, each, "60 KiB"))
	spare, warm := quantile(l.spare, 0.50), quantile(l.warm, 0.50)
	fmt.Fprintf(t, "first call with a spare of a server that takes %s\t%s\t\t\n", slowStart, milli(spare))
	fmt.Fprintf(t, "over a second call, %s\t+ %s\t%s\t\n", milli(warm), milli(spare-warm), within(spare-warm, cost))
	return t.Flush()
}

// grace is the proxy's shutdownGrace, and a moment for the rest of the process.
const grace = 8*time.Second + 500*time.Millisecond

// printVisit writes the table of one crowd.
func printVisit(w io.Writer, c crowd, v visit) error {
	const arrival, each = 5 * time.Second, 70 * kib
	within := func(d, limit time.Duration) string { return atMost(d.Seconds(), limit.Seconds(), limit.String()) }
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%d clients of %d upstreams\t\taim\t\n", c.clients, c.upstreams)
	fmt.Fprintf(t, "initialized\t%d\t%s\t\n", v.initialized, all(v.initialized, c.clients))
	fmt.Fprintf(t, "in\t%s\t%s\t\n", milli(v.arrival), within(v.arrival, arrival))
	fmt.Fprintf(t, "processor time of that\t%s\t\t\n", milli(v.arrivalCPU))
	if v.calls > 0 { // they could stay
		fmt.Fprintf(t, "memory for each client and upstream\t%.1f KiB\t%s\t\n", v.each/kib, atMost(v.each, each, "70 KiB"))
		fmt.Fprintf(t, "calls answered\t%d\t%s\t\n", v.answered, all(v.answered, v.calls))
		fmt.Fprintf(t, "in, all at once\t%s\t\t\n", milli(v.calling))
		fmt.Fprintf(t, "processor time of that\t%s\t\t\n", milli(v.callingCPU))
		fmt.Fprintf(t, "p50, p99 of them\t%s, %s\t\t\n", milli(v.p50), milli(v.p99))
	}
	if v.again > 0 { // and go
		fmt.Fprintf(t, "memory left when they have gone\t%.1f MiB\t\t\n", v.left/mib)
		fmt.Fprintf(t, "descriptors left\t%d\t%s\t\n", v.files, atMost(float64(v.files), 0.5, "0"))
		fmt.Fprintf(t, "as many others initialized in\t%s\t%s\t\n", milli(v.again), within(v.again, arrival))
		fmt.Fprintf(t, "end with all of them there\t%s\t%s\t\n", milli(v.exit), within(v.exit, grace))
	}
	return t.Flush()
}

// all says whether each of them was meant.
func all(value, want int) string { return fmt.Sprintf("%d%s", want, verdict(value == want)) }

func milli(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
}

// atMostCPU says whether a bridge takes no more than it may; more is what a call
// costs above one without it.
func (tgt target) atMostCPU(more time.Duration) string {
	if !tgt.bridged {
		return ""
	}
	return fmt.Sprintf("+ %s ", micro(more)) + atMost(float64(more), float64(bridging), bridging.String())
}

func over(a, b time.Duration) float64 { return float64(a) / float64(b) }

func micro(d time.Duration) string {
	return fmt.Sprintf("%d µs", d.Round(time.Microsecond).Microseconds())
}

// atMost says what was aimed at and whether value reaches it.
func atMost(value, limit float64, text string) string {
	if limit == 0 {
		return ""
	}
	return "≤ " + text + verdict(value <= limit)
}

func atLeast(share, limit float64) string {
	if limit == 0 {
		return ""
	}
	return fmt.Sprintf("≥ %.4g %%%s", 100*limit, verdict(share >= limit))
}

func verdict(reached bool) string {
	if reached {
		return " ✓"
	}
	return " ✗"
}
