package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops/metrics"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops/tap"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops/traces"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// operatorsOnly is the mode of the Unix sockets for operators.
const operatorsOnly fs.FileMode = 0o600

// operators serves operators of a Proxy or a Host at addresses of their own.
type operators struct {
	// Static after construction.
	web    *web
	server *ops.Server
	socket string // Options.AdminSocket
	log    *slog.Logger
	began  time.Time
	file   string           // of the configuration; "" for none
	dir    string           // of the process at its start; "" if not known
	recent *metrics.Metrics // nil for none

	opened   sync.Once // open
	err      error     // of open
	started  sync.Once
	serving  gate
	draining atomic.Bool
}

// newOperators returns the operators of a Proxy or a Host.
func newOperators(cfg *config.Config, o Options, s *ops.Server) *operators {
	guard := &frontend.Guard{AllowedHosts: allowedHosts(cfg), Listen: cfg.Admin.Listen}
	s.Admit, s.Named, s.FromOtherSite = guard.Admit, guard.Names, frontend.FromOtherSite
	s.History, s.Payloads, s.Version = o.history, cfg.Admin.Payloads, Version()
	if cfg.Admin.TokenFile != "" {
		s.Token = secretfile.Token(cfg.Admin.TokenFile)
	}
	if o.metrics != nil {
		s.Metrics, s.Taps = o.metrics.Handler(s.Snapshot), new(tap.Taps)
	}
	dir, _ := os.Getwd() // only for display
	return &operators{server: s, socket: o.AdminSocket, log: o.Log, began: time.Now(), file: cfg.File, dir: dir, recent: o.metrics, web: &web{
		addresses: cfg.Admin.Listen, mode: operatorsOnly, log: o.Log, server: &http.Server{
			Handler:           s,
			ReadHeaderTimeout: 10 * time.Second,
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    16 << 10,
			ErrorLog:          o.anonymous.httpErrors(),
		},
	}}
}

// observe adds the hooks that a configuration asks for. It keeps metrics and events only if operators have an
// address to read them.
func (o *Options) observe(cfg *config.Config) {
	if cfg.Logs.Calls {
		o.Hooks = observe.Join(o.Hooks, ops.LogCalls(o.Log))
	}
	o.history = new(ops.History)
	if o.AdminSocket == "" && len(cfg.Admin.Listen) == 0 {
		return
	}
	o.metrics = metrics.New(Version())
	o.Hooks = observe.Join(observe.Join(o.Hooks, o.metrics.Hooks()), o.history.Hooks())
}

// open listens at all configured addresses or at none, and at the socket if possible. It does so once, and returns
// the same error each time.
func (o *operators) open() error {
	o.opened.Do(func() {
		if o.err = o.web.listen(); o.err != nil || o.socket == "" {
			return
		}
		l, err := link.ListenUnix(o.socket, operatorsOnly)
		if err != nil {
			o.log.Debug("no socket for operators", "err", err)
			return
		}
		o.web.listeners = append(o.web.listeners, l)
	})
	return o.err
}

// start serves operators until close. Callers that need the error of listening call open first.
func (o *operators) start() {
	o.started.Do(func() {
		if err := o.open(); err != nil {
			o.log.Warn("cannot serve operators", "err", err)
		}
		o.serving.run(o.serve)
	})
}

func (o *operators) serve() {
	if err := o.web.serve(); err != nil {
		o.log.Error("listener for operators failed", "err", err)
	}
}

func (o *operators) close() {
	o.opened.Do(func() {}) // what has not been opened never will be
	if o.server.Taps != nil {
		o.server.Taps.Close()
	}
	o.web.close()
	o.serving.wait()
}

// drain returns the check that fails from Unready on.
func (o *operators) drain() ops.Check {
	c := ops.Check{Name: "drain"}
	if o.draining.Load() {
		c.Why = "shutting down"
	}
	return c
}

// listening returns the check that fails unless all listeners are up.
func listening(up bool) ops.Check {
	c := ops.Check{Name: "listeners"}
	if !up {
		c.Why = "not all are up"
	}
	return c
}

// newTraces adds hooks that record traces, and returns what records; nil if neither the configuration nor the
// environment asks for traces. Variables may be meant for other programs: invalid ones are logged only.
func newTraces(cfg *config.Config, o *Options) (*traces.Traces, error) {
	env, tls, err := collectorOf(cfg, o.Log)
	if problems, ok := errors.AsType[config.Problems](err); ok {
		return nil, problems
	}
	if err != nil {
		o.Log.Warn("traces are off", "err", err)
	}
	if err != nil || env.Off || env.Endpoint == "" {
		return nil, nil
	}
	t := traces.New(traces.Settings{
		Endpoint: env.Endpoint, Headers: env.Headers, HeadersFrom: cfg.Traces.HeadersFrom, TLS: tls, Timeout: env.Timeout, Gzip: env.Gzip,
		Sample: cfg.Traces.Sample, Version: Version(), Log: o.Log,
	})
	o.Hooks = observe.Join(o.Hooks, observe.Hooks{Follower: t})
	if at, err := url.Parse(env.Endpoint); err == nil {
		o.Log.Info("calls are traced", "collector", at.Host)
	}
	return t, nil
}

// collectorOf returns the collector of traces: that of the configuration, else that of the environment.
func collectorOf(cfg *config.Config, log *slog.Logger) (traces.Environment, *tls.Config, error) {
	env, err := traces.ReadEnvironment(os.Getenv)
	env.Off = env.Off || cfg.Traces.Off
	switch {
	case env.Off:
		return env, nil, nil
	case cfg.Traces.Endpoint != "":
		env = traces.Environment{Endpoint: traces.Below(cfg.Traces.Endpoint)}
	case err != nil || env.Endpoint == "":
		return env, nil, err
	}
	own, err := clientTLS(cfg.Traces.TLS, env.Endpoint, log)
	switch {
	case err != nil:
		return env, nil, config.Problems{{Source: cfg.File, Key: "traces.tls", Text: err.Error()}}
	case own != nil:
		return env, own, nil
	}
	theirs, err := clientTLS(config.TLS{CA: env.CA, Cert: env.Cert, Key: env.Key}, env.Endpoint, log)
	if err != nil {
		err = fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE, _CLIENT_KEY: %w", err)
	}
	return env, theirs, err
}

const (
	leastFlush = 200 * time.Millisecond // even if no time is left
	mostFlush  = 2 * time.Second        // even if more time is left
)

// flush sends the remaining spans of t, which may be nil, within what is left of the shutdown.
func flush(ctx context.Context, t *traces.Traces) {
	if t == nil {
		return
	}
	within := mostFlush
	if deadline, ok := ctx.Deadline(); ok {
		within = min(within, time.Until(deadline))
	}
	if ctx.Err() != nil {
		within = 0
	}
	flushing, cancel := context.WithTimeout(context.Background(), max(within, leastFlush))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(leastFlush, cancel) })()
	t.Shutdown(flushing)
}
