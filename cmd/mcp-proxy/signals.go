package main

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"
)

// together is how close two signals are that are one: a supervisor that signals the
// whole group, and a shell that does, too, mean no force.
const together = 300 * time.Millisecond

// A hangUp is what SIGHUP means.
type hangUp byte

const (
	hangUpReloads hangUp = iota // somebody asks for that: there is no terminal
	hangUpStops                 // the terminal was closed
	hangUpIgnored               // as it was when we were started: by nohup
)

// meaningOfHangUp is decided at the start, before anything asks for signals: the terminal may
// be gone later.
func meaningOfHangUp(stdin *os.File) hangUp {
	switch {
	case signal.Ignored(syscall.SIGHUP):
		return hangUpIgnored
	case term.IsTerminal(int(stdin.Fd())):
		return hangUpStops
	}
	return hangUpReloads
}

// stopSignals returns the signals that say to stop, of which the second forces, until
// stop is called. Those that come together are one.
func stopSignals(hup hangUp) (signals <-chan os.Signal, stop func()) {
	all, apart := make(chan os.Signal, 2), make(chan os.Signal, 2)
	which := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if hup == hangUpStops {
		which = append(which, syscall.SIGHUP)
	}
	signal.Notify(all, which...)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { passApart(all, apart, done) })
	return apart, func() {
		signal.Stop(all)
		close(done)
		wg.Wait()
	}
}

// passApart passes signals on until done is closed, but for those that come together
// with the one that was passed on last. What finds no room in out is dropped: whoever
// reads it has had the one that forces.
func passApart(in <-chan os.Signal, out chan<- os.Signal, done <-chan struct{}) {
	var last time.Time
	for {
		select {
		case s := <-in:
			if !last.IsZero() && time.Since(last) < together {
				continue
			}
			last = time.Now()
			select {
			case out <- s:
			default:
			}
		case <-done:
			return
		}
	}
}
