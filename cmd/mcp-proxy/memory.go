package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// A proxy has a heap of a few megabytes and much short-lived garbage: with the default GOGC it
// would collect all the time. A GOGC of 400 about doubles the calls per second. A large heap must
// not grow fivefold, so GOGC falls back to Go's default as the memory in use approaches amplyUsed.
const (
	gcPercent = 400
	goPercent = 100
	amplyUsed = 512 << 20
)

// What the start, a burst of calls or a crowd of clients has left is given back to the system when the
// program has allocated hardly anything for restAfter. The time begins with a cycle of the collector: what is
// worth it at the end may have become garbage since. A program that is idle from then on pays nothing more for
// that.
const (
	restAfter = 2 * time.Second
	restBelow = 1 << 20 // bytes that a program at rest allocates in that time
	worthIt   = 4 << 20 // bytes to give back
)

// tuneMemory sets GOGC after each collection, unless the user has set it.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		r := &rest{after: restAfter, heap: heap, give: debug.FreeOSMemory}
		r.begin(0) // the start may be over without a cycle
		c := &heapGoal{set: debug.SetGCPercent, rest: r}
		(&cycle{c.tune}).over()
	}
}

// A cycle is unreachable, so that each cycle of the collector calls its finalizer, over, which calls then.
type cycle struct{ then func() }

func (c *cycle) over() {
	c.then()
	runtime.SetFinalizer(c, (*cycle).over)
}

// A heapGoal is how far the heap may grow until the next cycle.
type heapGoal struct {
	percent int                   // the last one set
	set     func(percent int) int // [debug.SetGCPercent]
	rest    *rest
}

// tune sets how soon the next cycle begins. With a memory limit instead, the collector would
// run all the time once the limit is reached, as with ten thousand clients.
func (c *heapGoal) tune() {
	if percent := percentFor(used()); percent != c.percent {
		c.percent = percent
		c.set(percent)
	}
	c.rest.begin(worthIt)
}

// used returns how many bytes the last cycle found in use.
func used() uint64 {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() + samples[1].Value.Uint64()
}

// percentFor returns GOGC for a process that uses so many bytes.
func percentFor(used uint64) int {
	if used == 0 {
		return gcPercent
	}
	room := 100 * (amplyUsed - int64(used)) / int64(used)
	return int(min(max(room, goPercent), gcPercent))
}

// A rest waits until the program allocates hardly anything, and then gives back memory.
type rest struct {
	after time.Duration
	heap  func() (allocated, idle uint64) // [heap]
	give  func()                          // [debug.FreeOSMemory]

	mu        sync.Mutex // guards the fields below
	waiting   bool
	least     uint64 // bytes that are worth it
	allocated uint64 // bytes so far, when the time began
}

// begin begins to wait, unless that has begun. Then least bytes and more are given back.
func (r *rest) begin(least uint64) {
	allocated, _ := r.heap()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.waiting {
		r.waiting, r.least, r.allocated = true, least, allocated
		time.AfterFunc(r.after, r.over)
	}
}

// over ends the wait if the program is at rest.
func (r *rest) over() {
	allocated, idle := r.heap()
	r.mu.Lock()
	busy, worth := allocated-r.allocated > restBelow, idle >= r.least
	r.waiting, r.allocated = busy, allocated
	r.mu.Unlock()
	switch {
	case busy:
		time.AfterFunc(r.after, r.over)
	case worth:
		r.give() // a cycle, which begins to wait once more: a crowd may be leaving just now
	}
}

// heap returns how many bytes were allocated so far, and how many the program holds without need.
func heap() (allocated, idle uint64) {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	at := func(i int) uint64 { return samples[i].Value.Uint64() }
	return at(0), at(2) + at(3) - min(at(1), at(2))
}
