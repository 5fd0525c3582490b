package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/term"

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
func (s *start) run(ctx context.Context, v service, n *reporter, lostGrace time.Duration, ready func()) error {
	hangUpStops, hangUpReloads := meaningOfHangUp(os.Stdin)
	signals, ignore := stopSignals(hangUpStops)
	defer ignore()
	serving, over := context.WithCancel(ctx)
	defer over()
	t := &takeover{ctx: serving, again: s.again, first: s.cfg, adopt: n.adopting(v.Reload), log: s.log}
	if hangUpReloads {
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
	defer n.begin(serving, v.Try, s.cfg)()

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

// together is how close two signals are that are one: a supervisor that signals the
// whole group, and a shell that does, too, mean no force.
const together = 300 * time.Millisecond

// untilSignal returns a context that SIGINT and SIGTERM cancel, for commands that end at the first of them.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
}

// meaningOfHangUp reports what SIGHUP asks for: with a terminal on stdin the terminal was closed, without one an
// operator wants a reload. It is neither if SIGHUP was ignored at the start, as by nohup. Call it before anything
// asks for signals, and once: the terminal may be gone later.
func meaningOfHangUp(stdin *os.File) (stops, reloads bool) {
	if signal.Ignored(syscall.SIGHUP) {
		return false, false
	}
	stops = term.IsTerminal(int(stdin.Fd()))
	return stops, !stops
}

// stopSignals returns the signals that say to stop, of which the second forces, until
// stop is called. Those that come together are one.
func stopSignals(hangUp bool) (signals <-chan os.Signal, stop func()) {
	all, apart := make(chan os.Signal, 2), make(chan os.Signal, 2)
	which := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if hangUp {
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

// tellManager tells systemd a state of this process, if it wants to know (sd_notify(3)).
func tellManager(state string, log *slog.Logger) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("cannot notify systemd", "state", state, "err", err)
	}
}
