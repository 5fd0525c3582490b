//go:build unix

package main

import (
	"os"
	"syscall"
)

// statusSignals ask for the status.
var statusSignals = []os.Signal{syscall.SIGUSR1}
