//go:build !unix

package main

import "os"

// statusSignals ask for the status; there are none.
var statusSignals []os.Signal
