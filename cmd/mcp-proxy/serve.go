package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
)

// runServe serves clients over HTTP until a signal says to stop.
func runServe(ctx context.Context, cfg *config.Config, again reload, log *slog.Logger) error {
	if _, err := readToken(cfg.TokenFile); err != nil {
		return config.Problems{{Source: cfg.File, Key: "tokenFile", Text: err.Error()}}
	}
	e, err := newEngine(cfg, log)
	if err != nil {
		return err
	}
	front := newFront(cfg, e, log)
	if err := front.Guard.Check(); err != nil { // config has refused that; nobody may come past it
		return &runError{err}
	}
	if cfg.TokenFile == "" {
		log.Warn("no tokenFile: modern HTTP clients are one principal, and share the sessions kept for them at legacy upstreams", "principal", "anonymous")
	}
	listeners, err := listenAll(cfg.Listen)
	if err != nil {
		return &runError{err}
	}
	server := newServer(handlerOf(e, front), log)
	// Before the first client: a signal must find its handler.
	signals, ignore := stopSignals()
	defer ignore()
	e.start()
	var wg sync.WaitGroup
	serving, over := context.WithCancel(ctx)
	defer over()
	wg.Go(func() { again.reloadOn(serving, e.adopt, log) })
	failed := make(chan error, len(listeners))
	for _, l := range listeners {
		wg.Go(func() {
			if err := server.Serve(&fullListener{Listener: l, log: log}); !errors.Is(err, http.ErrServerClosed) {
				failed <- err
			}
		})
	}
	announceListeners(listeners)

	select {
	case s := <-signals:
		log.Info("shutting down", "signal", s.String(), "grace", cfg.ShutdownGrace)
	case err = <-failed:
		log.Error("listener failed", "err", err)
	case <-ctx.Done():
	}
	over()
	forced := shutdown(cfg.ShutdownGrace, signals, e, front, server)
	wg.Wait()
	if err == nil && forced {
		err = errors.New("shutdown was forced")
	}
	if err != nil {
		return &runError{err}
	}
	return nil
}

func newFront(cfg *config.Config, e *engine, log *slog.Logger) *frontend.HTTP {
	return &frontend.HTTP{
		Serve:          e.serve,
		ServePrincipal: e.proxy.ServePrincipal,
		Known:          e.known,
		Guard: frontend.Guard{
			TokenFrom: told(tokenFrom(cfg.TokenFile), log), AllowedHosts: cfg.AllowedHosts, AllowedOrigins: cfg.AllowedOrigins,
			Listen: cfg.Listen, Insecure: cfg.Insecure,
		},
		Limits:      limitsOf(cfg),
		Sessions:    cfg.Limits.Sessions,
		SessionIdle: cfg.SessionIdle,
		SessionGone: cfg.SessionGone,
		Log:         log,
	}
}

// handlerOf adds /link to the front end, while hosts may dial us.
func handlerOf(e *engine, front *frontend.HTTP) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/link" || len(e.far.accepting()) == 0 {
			front.ServeHTTP(w, r)
			return
		}
		if err := front.Guard.Admit(w, r); err != nil {
			e.far.refused(r, err)
			return
		}
		e.far.ServeHTTP(w, r)
	})
}

func newServer(front http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           front,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// shutdown drains within one budget: no new requests or sessions, and those in flight
// finish. What is left of the budget then is the upstreams', to stop as they wish; when
// it is nearly used up, or at a second signal, the rest ends by force. It reports
// whether a signal forced it.
func shutdown(grace time.Duration, signals <-chan os.Signal, e *engine, front *frontend.HTTP, server *http.Server) bool {
	drain, cancel := context.WithTimeout(context.Background(), max(grace-e.near.stopReserve(), 0))
	defer cancel()
	limit := time.AfterFunc(max(grace-forceTime, hangUpTime), e.near.force)
	defer limit.Stop()
	drained := make(chan struct{})
	forced := make(chan bool, 1)
	go func() {
		select {
		case <-signals:
			cancel()
			limit.Reset(hangUpTime)
			forced <- true
		case <-drained:
			forced <- false
		}
	}()
	front.Drain()
	e.proxy.Shutdown(drain)
	front.Close() // what did not finish in time hears so now
	e.stop(e.near.forced)
	closeServer(server)
	close(drained)
	return <-forced
}

// closeServer lets handlers write their last bytes, and ends those that cannot.
func closeServer(server *http.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		server.Close()
	}
}
