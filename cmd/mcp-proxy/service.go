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

// run runs a service until a signal asks to stop, and shuts it down within the configured grace, or
// within lostGrace if the service fails. It calls ready after the handlers of signals are in place,
// and before it serves the first client.
func (s *start) run(ctx context.Context, v service, n *reporter, lostGrace time.Duration, ready func()) error {
	// Nobody reads it: a write to a stdout or stderr that nobody reads any more then fails, and does not end the process.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	hangUpStops, hangUpReloads := meaningOfHangUp(os.Stdin)
	signals, ignore := stopSignals(hangUpStops)
	defer ignore()
	serving, over := context.WithCancel(ctx)
	defer over()
	t := &takeover{start: s, ctx: serving, adopt: n.adopting(v.Reload)}
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
	defer n.begin(serving, v.Try)()

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

// serveOn keeps serving for delay, or until another signal, while readiness fails: a load balancer
// can send clients elsewhere before the first is refused.
func serveOn(v service, delay time.Duration, signals <-chan os.Signal) {
	v.Unready()
	select {
	case <-time.After(delay):
	case <-signals:
	}
}

// shutdown ends a service within grace, or by force at a second signal; it reports the latter.
func shutdown(v service, grace time.Duration, signals <-chan os.Signal) (forced bool) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	over := make(chan struct{})
	go func() {
		_ = v.Shutdown(ctx) // it fails only if a signal forces it
		close(over)
	}()
	select {
	case <-over:
		return false
	case <-signals:
		cancel()
		<-over
		return true
	}
}

// together is the time within which several signals count as one: a supervisor and a shell may both
// signal the process group, and that must not force the end.
const together = 300 * time.Millisecond

// untilSignal returns a context that SIGINT and SIGTERM cancel, and SIGHUP unless it is ignored, for commands that
// end at the first of them.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	which := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		which = append(which, syscall.SIGHUP)
	}
	return signal.NotifyContext(ctx, which...)
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

// stopSignals returns the signals that ask to stop, with SIGHUP if hangUp is set, until stop is called.
// The second one forces the end. Signals within a short time count as one.
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

// passApart passes signals on until done is closed. It drops those that follow the last one within
// together, and those that find out full: its reader has then had the one that forces.
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

// tellManager notifies systemd of a state of this process, if systemd has started it (sd_notify(3)).
func tellManager(state string, log *slog.Logger) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("cannot notify systemd", "state", state, "err", err)
	}
}
