package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// An aim is what a proxy should reach; zero means none. Times and calls are
// ratios to the relay's.
type aim struct {
	p50, perSecond float64
	first          time.Duration
}

var aims = map[string]aim{
	"stdio":     {p50: 1.5, perSecond: 0.40, first: 20 * time.Millisecond},
	"websocket": {p50: 1.7, perSecond: 0.25}, // 50,000 where the relay makes 200,000
	"http":      {p50: 2.5, perSecond: 0.125},
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
	}
}

func middle[T time.Duration | float64](samples []sample, of func(sample) T) T {
	values := make([]T, 0, len(samples))
	for _, s := range samples {
		values = append(values, of(s))
	}
	slices.Sort(values)
	return quantile(values, 0.5)
}

// printCalls writes the table of all targets; relay is what they are set
// against.
func printCalls(w io.Writer, targets []target, medians map[string]sample) error {
	relay := medians["relay"]
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\tp50\t× relay\taim\tp99\tcalls/s at %d\tof relay\taim\t1 MiB\t× relay\tfirst answer\taim\t\n", width)
	for _, tgt := range targets {
		m, a := medians[tgt.name], aims[tgt.name]
		slower, share := over(m.p50, relay.p50), m.perSecond/relay.perSecond
		fmt.Fprintf(t, "%s\t%s\t%.2f\t%s\t%s\t%.0f\t%.1f %%\t%s\t%s\t%.2f\t%s\t%s\t\n", tgt.name,
			micro(m.p50), slower, atMost(slower, a.p50, fmt.Sprintf("%.1f", a.p50)), micro(m.p99),
			m.perSecond, 100*share, atLeast(share, a.perSecond),
			micro(m.big), over(m.big, relay.big),
			micro(m.first), atMost(m.first.Seconds(), a.first.Seconds(), a.first.String()))
	}
	return t.Flush()
}

func printFootprint(w io.Writer, f footprint) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "resident memory of the proxy\t\taim\t\n")
	fmt.Fprintf(t, "idle\t%.1f MiB\t%s\t\n", f.idle/mib, atMost(f.idle, 15*mib, "15 MiB"))
	fmt.Fprintf(t, "each of %d connected WebSocket clients\t%.1f KiB\t%s\t\n",
		f.clients, f.connected/kib, atMost(f.connected, 30*kib, "30 KiB"))
	fmt.Fprintf(t, "each of %d initialized ones\t%.1f KiB\t%s\t\n",
		f.sessions, f.initialized/kib, atMost(f.initialized, 80*kib, "80 KiB"))
	return t.Flush()
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
