package main

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var (
	firstSeed = flag.Uint64("seed", 0, "of the first simulation")
	seeds     = flag.Uint64("seeds", 200, "how many simulations there are")
	docsDir   = flag.String("docs", "", "the `directory` of reliability.md, which gets what was done")
	repeats   = flag.Int("repeat", 1000, "how often a simulation that fails is repeated")
)

// TestSimulation makes histories in memory and judges them as those of processes. A seed gives the plans of clients and
// faults, and the pauses, but not the interleaving: one that fails is repeated, to tell how often it does.
func TestSimulation(t *testing.T) {
	b := &batch{next: *firstSeed, end: *firstSeed + *seeds, done: map[string]int{}}
	began := time.Now()
	t.Run("seeds", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				b.run(t)
			})
		}
	})
	t.Logf("%d seeds in %v:%s", b.next-*firstSeed, time.Since(began).Round(time.Second/10), b)
	if b.failed == nil {
		b.document(t)
		return
	}
	var text strings.Builder
	b.failed.print(&text)
	t.Errorf("%s%d of %d repetitions fail. Again: go test -run TestSimulation -seeds 1 -seed %d",
		text.String(), repeat(t, b.failed.seed), *repeats, b.failed.seed)
}

// repeat returns how many repetitions of a seed have an anomaly.
func repeat(t *testing.T, seed uint64) (failed int) {
	for range *repeats {
		if r := simulated(t, seed, nil); len(r.anomalies) > 0 {
			failed++
		}
	}
	return failed
}

// A batch is a range of seeds, up to the first that fails.
type batch struct {
	mu        sync.Mutex
	next, end uint64
	failed    *report
	done      map[string]int // operations and faults, by kind
}

// run takes one seed after the other.
func (b *batch) run(t *testing.T) {
	for {
		b.mu.Lock()
		seed := b.next
		if over := b.failed != nil || seed == b.end; over {
			b.mu.Unlock()
			return
		}
		b.next++
		b.mu.Unlock()
		b.add(simulated(t, seed, nil))
	}
}

func (b *batch) add(r *report) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(r.anomalies) > 0 {
		b.failed = r
	}
	for _, e := range r.events {
		switch e.What {
		case Join:
			b.done["client: "+e.Text]++
		case Sent:
			b.done["operation: "+kindOf(e.Text)]++
		case Fault:
			b.done["fault: "+e.Text[:strings.LastIndexByte(e.Text, ' ')]]++
		}
	}
}

func (b *batch) String() string {
	var text strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(b.done)) {
		fmt.Fprintf(&text, "\n%8d %s", b.done[kind], kind)
	}
	return text.String()
}

// document writes what simulations without an anomaly have done.
func (b *batch) document(t *testing.T) {
	if *docsDir == "" {
		return
	}
	kinds := map[string]map[string]int{"client": {}, "operation": {}, "fault": {}}
	for name, n := range b.done {
		kind, what, _ := strings.Cut(name, ": ")
		kinds[kind][what] = n
	}
	text := fmt.Sprintf("%d histories, seeds %d to %d\nclients: %s\noperations: %s\nfaults: %s\n%s\n", b.next-*firstSeed, *firstSeed, b.next-1,
		counted(kinds["client"]), counted(kinds["operation"]), counted(kinds["fault"]), promised(nil))
	if err := ofSimulation.put(*docsDir, listing(text)); err != nil {
		t.Error(err)
	}
}

// simulated makes and judges the history of a seed.
func simulated(t *testing.T, seed uint64, p *plant) (r *report) {
	r = &report{seed: seed}
	var logs []byte
	var left []Anomaly
	watchdog := time.AfterFunc(time.Minute, func() { // a bubble that is not idle, and goes nowhere
		panic(fmt.Sprintf("seed %d hangs:\n%s", seed, inBubbles()))
	})
	defer watchdog.Stop()
	defer func() { // of a bubble in which goroutines are left
		if why := recover(); why != nil {
			r.anomalies = []Anomaly{{Rule: 8, What: fmt.Sprintf("%v\n%s\n", why, inBubbles())}}
		}
	}()
	synctest.Test(t, func(*testing.T) { r.events, logs, left = simulate(seed, p) })
	r.anomalies = append(judgeHistory(r.events, logs), left...)
	return r
}

// inBubbles returns the stacks of all goroutines in bubbles.
func inBubbles() string {
	stacks := make([]byte, 1<<20)
	all := strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n")
	return strings.Join(slices.DeleteFunc(all, func(s string) bool {
		first, _, _ := strings.Cut(s, "\n")
		return !strings.Contains(first, "synctest bubble")
	}), "\n\n")
}

// TestSimulationFindsPlants proves that simulations find each fault that can be planted, but the one of processes.
func TestSimulationFindsPlants(t *testing.T) {
	for name, rule := range plants {
		if name == "leave a process" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(1000) {
				r := simulated(t, seed, &plant{name: name})
				if slices.ContainsFunc(r.anomalies, func(a Anomaly) bool { return a.Rule == rule }) {
					t.Logf("found with seed %d", seed)
					return
				}
			}
			t.Error("not found")
		})
	}
}
