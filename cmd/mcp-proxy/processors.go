package main

import (
	"os"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"
)

// A call passes from goroutine to goroutine. Each time, the runtime wakes a thread if a processor is free, and
// that mostly comes too late to have anything to do. With one processor, a call that is alone takes up to a sixth
// less time and a third less CPU. So the program uses one, and all that it may use only while many goroutines
// wait for it or, as with large messages, a few always do.
const (
	manyWait  = 8
	fewWait   = 2
	allBusy   = 0.9      // processors, of one
	fewBusy   = 1.25     // of all; threads that look for something to do count as busy
	muchDone  = 32 << 10 // bytes allocated between two looks, as by some hundred calls per second
	lookEvery = 5 * time.Millisecond
	lookFor   = 200 * time.Millisecond // after a cycle of the collector, and while something waits or much is done
	allFor    = 500 * time.Millisecond // after the last reason for all processors
)

// tuneProcessors sets GOMAXPROCS after the first cycle of the collector, unless the user has set it, or there are no
// cycles. Before the first one, a processor that goes would leave half a MiB of the runtime's tables for the memory
// that it used.
func tuneProcessors() {
	if os.Getenv("GOMAXPROCS") != "" || os.Getenv("GOGC") == "off" || runtime.GOMAXPROCS(0) == 1 {
		return
	}
	p := &processors{one: func() { runtime.GOMAXPROCS(1) }, all: runtime.SetDefaultGOMAXPROCS, load: load, usesAll: true}
	runtime.SetFinalizer(&cycle{func() { p.begin(busy()) }}, (*cycle).over)
}

// processors decides how many the program uses.
type processors struct {
	one, all func()
	load     func() (waiting int, done uint64) // [load]

	mu      sync.Mutex // guards the fields below
	usesAll bool
	mean    float64   // of how many were waiting, above all lately
	done    uint64    // at the last look
	doing   float64   // mean of what was done between two looks, above all in the last tenth of a second
	used    float64   // processors in the last cycle; zero once look has seen it
	busy    float64   // as given to begin
	at      time.Time // of that
	looking bool
	until   time.Time // look goes on, unless something waits or much is done
	needed  time.Time // when there was the last reason for all
}

// begin is called after each cycle of the collector, with the result of [busy]. It looks for a while how many
// goroutines wait.
func (p *processors) begin(busy float64) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = (busy - p.busy) / now.Sub(p.at).Seconds()
	p.busy, p.at, p.until = busy, now, now.Add(lookFor)
	if !p.looking {
		p.looking = true
		_, p.done = p.load()
		time.AfterFunc(lookEvery, p.look)
	}
}

func (p *processors) look() {
	n, done := p.load()
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mean += 0.3 * (float64(n) - p.mean)
	switch {
	case !p.usesAll && (p.mean >= manyWait || p.used >= allBusy):
		p.usesAll, p.needed = true, now
		p.all()
	case p.usesAll && (p.mean >= fewWait || p.used >= fewBusy):
		p.needed = now
	case p.usesAll && now.Sub(p.needed) >= allFor:
		p.usesAll = false
		p.one()
	}
	p.doing += 0.05 * (float64(done-p.done) - p.doing) // a packet of another replica takes 64 KiB at once
	if n > 0 || p.doing >= muchDone {
		p.until = now.Add(lookFor)
	}
	p.used, p.done = 0, done
	if p.looking = p.usesAll || now.Before(p.until); p.looking {
		time.AfterFunc(lookEvery, p.look)
	}
}

// load returns how many goroutines wait for a processor, and what has been done, as bytes that were allocated.
func load() (waiting int, done uint64) {
	samples := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}, {Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(samples)
	return int(samples[0].Value.Uint64()), samples[1].Value.Uint64()
}

// busy returns for how many seconds processors of this program were not idle, up to the last cycle.
func busy() float64 {
	samples := []metrics.Sample{{Name: "/cpu/classes/total:cpu-seconds"}, {Name: "/cpu/classes/idle:cpu-seconds"}}
	metrics.Read(samples)
	return samples[0].Value.Float64() - samples[1].Value.Float64()
}
