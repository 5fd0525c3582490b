package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// runServe serves clients over HTTP until a signal says to stop.
func runServe(ctx context.Context, cfg *config.Config, again reload, log *slog.Logger) error {
	p, err := proxy.New(cfg, proxy.Options{Log: log})
	if err != nil {
		return failedBy(err)
	}
	if cfg.TokenFile == "" {
		log.Warn("no tokenFile: modern HTTP clients are one principal, and share the sessions kept for them at legacy upstreams", "principal", "anonymous")
	}
	addresses, err := p.Listen()
	if err != nil {
		return &runError{inUse(err)}
	}
	s := service{running: p, log: log, again: again, grace: cfg.ShutdownGrace, lostGrace: cfg.ShutdownGrace}
	return s.run(ctx, func() { announce(addresses) })
}

// announce prints where clients reach us, on stdout.
func announce(addresses []net.Addr) {
	for _, a := range addresses {
		switch a.Network() {
		case "unix":
			fmt.Printf("listening on unix://%s (/mcp, /ws, /sse)\n", a)
		default:
			fmt.Printf("listening on http://%s/mcp, ws://%s/ws and http://%s/sse\n", a, a, a)
		}
	}
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

// A service is what serves until a signal says to stop.
type service struct {
	running interface { // a Proxy or a Host
		Serve() error
		Reload(*config.Config) error
		Shutdown(context.Context) error
		Snapshot() proxy.Snapshot
	}
	log   *slog.Logger
	again reload

	grace     time.Duration // of a shutdown that a signal asks for
	lostGrace time.Duration // of one after Serve has failed
}

// run serves, says so, and returns after the shutdown. The signals find their handlers
// before the first client comes.
func (s *service) run(ctx context.Context, ready func()) error {
	signals, ignore := stopSignals()
	defer ignore()
	defer tellStatus(s.running.Snapshot, s.log)()
	serving, over := context.WithCancel(ctx)
	defer over()
	defer s.again.onSignal(serving, s.running.Reload, s.log)()
	ended := make(chan error, 1)
	go func() { ended <- s.running.Serve() }() // until Shutdown
	ready()

	var err error
	grace := s.lostGrace
	select {
	case signal := <-signals:
		grace = s.grace
		s.log.Info("shutting down", "signal", signal.String(), "grace", grace)
	case err = <-ended:
		s.log.Error("listener failed", "err", err)
	case <-ctx.Done():
	}
	over()
	if forced := s.shutdown(grace, signals); forced && err == nil {
		err = proxy.ErrForced
	}
	if err != nil {
		return &runError{err}
	}
	return nil
}

// shutdown ends all within grace, or at a second signal by force, which it reports.
func (s *service) shutdown(grace time.Duration, signals <-chan os.Signal) (forced bool) {
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
	_ = s.running.Shutdown(ctx) // forced by a signal alone
	close(over)
	return <-watched
}
