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
// wait for it.
const (
	manyWait  = 8
	fewWait   = 2
	lookEvery = 20 * time.Millisecond
	lookFor   = 2 * time.Second // after a cycle of the collector: an idle program has none
)

// tuneProcessors sets GOMAXPROCS from now on, unless the user has set it.
func tuneProcessors() {
	if os.Getenv("GOMAXPROCS") != "" || runtime.GOMAXPROCS(0) == 1 {
		return
	}
	p := &processors{one: func() { runtime.GOMAXPROCS(1) }, all: runtime.SetDefaultGOMAXPROCS, waiting: waiting}
	p.one()
	(&cycle{p.begin}).over()
}

// processors decides how many the program uses.
type processors struct {
	one, all func()
	waiting  func() int // [waiting]

	mu      sync.Mutex // guards the fields below
	looking bool
	until   time.Time
	mean    float64 // of what waiting has returned, above all lately
	usesAll bool
}

// begin looks for a while how many goroutines wait.
func (p *processors) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = time.Now().Add(lookFor)
	if !p.looking {
		p.looking = true
		time.AfterFunc(lookEvery, p.look)
	}
}

func (p *processors) look() {
	n := p.waiting()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mean += 0.3 * (float64(n) - p.mean)
	switch {
	case !p.usesAll && p.mean >= manyWait:
		p.usesAll = true
		p.all()
	case p.usesAll && p.mean < fewWait:
		p.usesAll = false
		p.one()
	}
	if p.looking = p.usesAll || time.Now().Before(p.until); p.looking {
		time.AfterFunc(lookEvery, p.look)
	}
}

// waiting returns how many goroutines wait for a processor.
func waiting() int {
	samples := []metrics.Sample{{Name: "/sched/goroutines/runnable:goroutines"}}
	metrics.Read(samples)
	return int(samples[0].Value.Uint64())
}
