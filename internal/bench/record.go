package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// recordPath has the figures that the repository records. -record writes it again.
const recordPath = "record.json"

// figures are what must not grow unseen, by name: of each path the ratios to the floor, which travel
// from one machine to another, and the KiB of a client.
type figures map[string]ratio

// Kinds of figures, with which their names begin.
const (
	cpuOver   = "CPU of a call over the floor"
	allocOver = "allocations of a call over the floor"
	clientKiB = "KiB of an initialized client"
)

// growth returns how much a figure may grow. Only processor time depends on what else the machine does.
func growth(name string) float64 {
	if strings.HasPrefix(name, cpuOver) {
		return 1.25
	}
	return 1.10
}

const (
	judgeRounds = 6
	judgePart   = 200 * time.Millisecond
)

// judge measures the figures, and fails if one of them is above what is recorded; or it records them.
// Processor time is measured again before it is a failure.
func judge(w io.Writer, b programs, o options) error {
	recorded := map[string]float64{}
	if text, err := os.ReadFile(recordPath); err != nil && !o.record {
		return err
	} else if err == nil {
		if err := json.Unmarshal(text, &recorded); err != nil && !o.record {
			return fmt.Errorf("%s: %w", recordPath, err)
		}
	}
	now := figures{}
	pairs := b.fronts()
	base, with := make([][]turn, len(pairs)), make([][]turn, len(pairs))
	for attempt := range 2 {
		more, others, err := measurePairs(pairs, options{rounds: judgeRounds, part: judgePart})
		if err != nil {
			return err
		}
		for i, p := range pairs {
			base[i], with[i] = append(base[i], more[i]...), append(with[i], others[i]...)
			_, _, now[cpuOver+", "+p.name] = compared(base[i], with[i], turn.cost)
		}
		if attempt == 0 && !o.record && len(now.above(recorded)) == 0 {
			break
		}
	}
	if err := b.counting(now, pairs); err != nil {
		return err
	}
	if o.record {
		return now.write()
	}
	if err := now.print(w, recorded); err != nil {
		return err
	}
	if above := now.above(recorded); len(above) > 0 {
		return fmt.Errorf("above what %s has: %s", recordPath, strings.Join(above, "; "))
	}
	return nil
}

// counting adds what is counted, and does not depend on the machine's load.
func (b programs) counting(now figures, pairs []pair) error {
	for _, p := range pairs {
		here, err := b.allocations(p.with, judgePart)
		if err != nil {
			return err
		}
		floor, err := b.allocations(p.base, judgePart)
		if err != nil {
			return err
		}
		now[allocOver+", "+p.name] = ratio{middle: here.Allocs / floor.Allocs}
	}
	for _, g := range []group{
		{text: "isolated", tgt: b.webSocket(alone), clients: 100, initialize: true},
		{text: "shared", tgt: b.webSocket(shared), clients: 400, initialize: true},
	} {
		live, err := b.live(g)
		if err != nil {
			return err
		}
		now[clientKiB+", "+g.text] = ratio{middle: live / kib}
	}
	return nil
}

// live returns how many bytes of objects and stacks each client of g keeps alive.
func (b programs) live(g group) (each float64, err error) {
	s, err := b.counted(g.tgt).launch(probe{})
	if err != nil {
		return 0, err
	}
	defer func() { err = s.endAfter(err) }()
	one := g
	one.clients = 1 // what is there once comes with the first client
	if err := s.admit(one); err != nil {
		return 0, err
	}
	before, err := b.counts(s)
	if err != nil {
		return 0, err
	}
	if err := s.admit(g); err != nil {
		return 0, err
	}
	after, err := b.counts(s)
	return (after.Live - before.Live) / float64(g.clients), err
}

// above returns the figures that have grown too much. What noise may explain is not one.
func (f figures) above(recorded map[string]float64) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		limit := recorded[name] * growth(name)
		if v := f[name]; v.middle-v.error > limit {
			names = append(names, fmt.Sprintf("%s is %.2f, and may be %.2f", name, v.middle, limit))
		}
	}
	return names
}

func (f figures) print(w io.Writer, recorded map[string]float64) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "what may not grow\tnow\trecorded\tat most")
	for _, name := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(t, "%s\t%.2f ± %.2f\t%.2f\t%.2f\n", name, f[name].middle, f[name].error, recorded[name], recorded[name]*growth(name))
	}
	return t.Flush()
}

// write records f.
func (f figures) write() error {
	values := map[string]json.Number{}
	for name, v := range f {
		values[name] = json.Number(fmt.Sprintf("%.2f", v.middle))
	}
	text, err := json.MarshalIndent(values, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(recordPath, append(text, '\n'), 0o644)
}
