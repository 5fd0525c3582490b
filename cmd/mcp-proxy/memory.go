package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// A proxy has a heap of a few megabytes and much short-lived garbage: at the
// default GOGC it would collect all the time. Collecting a quarter as often
// about doubles the calls per second. A large heap is not to grow fivefold, so that
// what gcPercent allows in excess of Go's default ends at amplyUsed.
const (
	gcPercent = 400
	goPercent = 100
	amplyUsed = 512 << 20
)

// tuneMemory sees to that, unless the user did.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		(&collection{set: debug.SetGCPercent}).over()
	}
}

// A collection is garbage in each cycle of the collector, which calls over then.
type collection struct {
	percent int                   // as was set last
	set     func(percent int) int // [debug.SetGCPercent]
}

// over sets how soon the next cycle begins. A limit of the memory instead would have
// the collector work all the time once that is used, as by ten thousand clients.
func (c *collection) over() {
	if percent := percentFor(used()); percent != c.percent {
		c.percent = percent
		c.set(percent)
	}
	runtime.SetFinalizer(c, (*collection).over)
}

// used is what the last cycle has found to be in use.
func used() uint64 {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() + samples[1].Value.Uint64()
}

// percentFor returns GOGC for a process that uses so much.
func percentFor(used uint64) int {
	if used == 0 {
		return gcPercent
	}
	room := 100 * (amplyUsed - int64(used)) / int64(used)
	return int(min(max(room, goPercent), gcPercent))
}
