package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops/traces"
)

// newTraces adds to the hooks what records traces of calls, and returns that; nil if neither
// the configuration nor the environment wants any. What the environment says may be meant for
// others: if it cannot be used, that is a line in the log.
func newTraces(cfg *config.Config, o *Options) (*traces.Traces, error) {
	env, tls, err := collectorOf(cfg)
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
	o.Hooks = observe.Join(o.Hooks, t.Hooks())
	if at, err := url.Parse(env.Endpoint); err == nil {
		o.Log.Info("calls are traced", "collector", at.Host)
	}
	return t, nil
}

// collectorOf returns what the environment says of where traces go, or, where the
// configuration names a collector, what that says alone.
func collectorOf(cfg *config.Config) (traces.Environment, *tls.Config, error) {
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
	own, err := clientTLS(cfg.Traces.TLS)
	switch {
	case err != nil:
		return env, nil, config.Problems{{Source: cfg.File, Key: "traces.tls", Text: err.Error()}}
	case own != nil:
		return env, own, nil
	}
	theirs, err := clientTLS(config.TLS{CA: env.CA, Cert: env.Cert, Key: env.Key})
	if err != nil {
		err = fmt.Errorf("OTEL_EXPORTER_OTLP_CERTIFICATE, _CLIENT_CERTIFICATE, _CLIENT_KEY: %w", err)
	}
	return env, theirs, err
}

const (
	leastFlush = 200 * time.Millisecond // even when no time is left
	mostFlush  = 2 * time.Second        // even when there is no hurry
)

// flush sends what t, nil for nothing, still has of a shutdown's traces, in what is left of
// its time.
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
