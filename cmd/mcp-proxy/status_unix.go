//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// notifyStatus relays the signal that asks for the status.
func notifyStatus(asked chan<- os.Signal) { signal.Notify(asked, syscall.SIGUSR1) }
