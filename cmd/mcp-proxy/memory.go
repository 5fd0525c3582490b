package main

import (
	"os"
	"runtime/debug"
)

// A proxy has a heap of a few megabytes and much short-lived garbage: at the
// default GOGC it would collect all the time. Collecting a quarter as often
// about doubles the calls per second; the limit keeps a large heap from growing
// fivefold.
const (
	gcPercent   = 400
	memoryLimit = 512 << 20
)

// tuneMemory sets both, unless the user did.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}
