package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// A service is a Proxy or a Host.
type service interface {
	Serve() error
	Reload(*config.Config) error
	Unready()
	Shutdown(context.Context) error
	Calls() proxy.Calls
	Try(context.Context, []config.Upstream, func(*proxy.Trial))
}

// run runs a service until a signal says to stop, and shuts it down. If the service fails
// it has lostGrace for that. ready is called when signals find their handlers, before the
// first client comes.
func (s *start) run(ctx context.Context, v service, lostGrace time.Duration, ready func()) error {
	hup := meaningOfHangUp(os.Stdin)
	signals, ignore := stopSignals(hup)
	defer ignore()
	serving, over := context.WithCancel(ctx)
	defer over()
	n := s.reporter
	t := &takeover{ctx: serving, again: s.again, first: s.cfg, adopt: n.adopting(v.Reload), log: s.log}
	if hup == hangUpReloads {
		defer t.onSignal()()
	}
	if s.watch {
		stop, err := t.onChange()
		if err != nil {
			return &runError{fmt.Errorf("--watch: %w", err)}
		}
		defer stop()
	}
	ended := make(chan error, 1)
	go func() { ended <- v.Serve() }() // until Shutdown
	ready()
	tellManager(daemon.SdNotifyReady, s.log)
	defer n.begin(serving, v, s.cfg)()

	var err error
	grace := lostGrace
	select {
	case signal := <-signals:
		tellManager(daemon.SdNotifyStopping, s.log)
		grace = s.cfg.ShutdownGrace
		if delay := s.cfg.DrainDelay; delay > 0 {
			if !n.lingers(delay) {
				s.log.Info("draining", "signal", signal.String(), "delay", delay)
			}
			serveOn(v, delay, signals)
		}
		if !n.stops(grace, v.Calls) {
			s.log.Info("shutting down", "signal", signal.String(), "grace", grace)
		}
	case err = <-ended:
		s.log.Error("listener failed", "err", err)
	case <-ctx.Done():
	}
	over()
	if forced := shutdown(v, grace, signals); forced && err == nil {
		err = proxy.ErrForced
	}
	if err != nil {
		return &runError{err}
	}
	return nil
}

// serveOn goes on serving for delay, or until another signal, while readiness fails: whoever
// sends clients here learns of it before there is anything to refuse.
func serveOn(v service, delay time.Duration, signals <-chan os.Signal) {
	v.Unready()
	select {
	case <-time.After(delay):
	case <-signals:
	}
}

// shutdown ends a service within grace, or at a second signal by force, which it reports.
func shutdown(v service, grace time.Duration, signals <-chan os.Signal) (forced bool) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	over := make(chan struct{})
	watched := make(chan bool)
	go func() {
		select {
		case <-signals:
			cancel()
			watched <- true
		case <-over:
			watched <- false
		}
	}()
	_ = v.Shutdown(ctx) // forced by a signal alone
	close(over)
	return <-watched
}

// failedBy returns what New or NewHost has failed by: a mistake of the user, or not.
func failedBy(err error) error {
	if _, ok := errors.AsType[config.Problems](err); ok {
		return err
	}
	return &runError{err}
}

// inUse says what to do about an error of listening where somebody else does.
func inUse(err error) error {
	const windows = syscall.Errno(10048) // what WSAEADDRINUSE is there
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, windows) {
		return fmt.Errorf("%w: another program listens there; stop that one, or choose another address with --listen", err)
	}
	return err
}
