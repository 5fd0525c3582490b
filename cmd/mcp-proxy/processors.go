package main

import (
	"os"
	"runtime"
	"runtime/metrics"
	"time"
)

// A call passes from goroutine to goroutine. Each time, the runtime wakes a thread if a processor is free, and
// that mostly comes too late to have anything to do. With one processor, a call that is alone takes up to a sixth
// less time and a third less CPU. So the program gets along with one until that is busy most of the time.
const (
	mostlyBusy = 0.8  // of the one processor: from here on, calls wait for each other
	hardlyBusy = 1.25 // processors; threads that look for something to do count as busy
)

// tuneProcessors sets GOMAXPROCS after each cycle of the collector, unless the user has set it. An idle program
// has no cycles and pays nothing for that, and a busy one has many in a second.
func tuneProcessors() {
	if os.Getenv("GOMAXPROCS") != "" || runtime.GOMAXPROCS(0) == 1 {
		return
	}
	p := &processors{one: func() { runtime.GOMAXPROCS(1) }, all: runtime.SetDefaultGOMAXPROCS}
	p.one()
	(&cycle{func() { p.tune(time.Now(), busy()) }}).over()
}

// processors decides how many the program uses.
type processors struct {
	one, all func()
	usesAll  bool

	at   time.Time // of the last cycle
	busy float64   // seconds until then
}

// tune is called after each cycle, with the time that processors have been busy so far, in seconds.
func (p *processors) tune(now time.Time, busy float64) {
	used := (busy - p.busy) / now.Sub(p.at).Seconds()
	p.at, p.busy = now, busy
	switch {
	case !p.usesAll && used >= mostlyBusy:
		p.usesAll = true
		p.all()
	case p.usesAll && used < hardlyBusy:
		p.usesAll = false
		p.one()
	}
}

// busy returns for how many seconds processors of this program were not idle, up to the last cycle.
func busy() float64 {
	samples := []metrics.Sample{{Name: "/cpu/classes/total:cpu-seconds"}, {Name: "/cpu/classes/idle:cpu-seconds"}}
	metrics.Read(samples)
	return samples[0].Value.Float64() - samples[1].Value.Float64()
}
