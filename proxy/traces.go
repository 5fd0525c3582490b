package proxy

import (
	"cmp"
	"context"
	"net/url"
	"os"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/traces"
)

// newTraces adds to the hooks what records traces of calls, and returns that; nil if neither
// the configuration nor the environment wants any. Where the configuration names a
// collector, what the environment says of another one goes for nothing.
func newTraces(cfg *config.Config, o *Options) (*traces.Traces, error) {
	env, err := traces.ReadEnvironment(os.Getenv)
	c := cfg.Traces
	switch {
	case env.Off:
		return nil, nil
	case c.Endpoint != "":
		env = traces.Environment{Endpoint: traces.Below(c.Endpoint)}
	case err != nil:
		o.Log.Warn("traces are off", "err", err)
		return nil, nil
	case env.Endpoint == "":
		return nil, nil
	}
	files := c.TLS
	if files == (config.TLS{}) {
		files = config.TLS{CA: env.CA, Cert: env.Cert, Key: env.Key}
	}
	tls, err := clientTLS(files)
	if err != nil {
		return nil, config.Problems{{Source: cmp.Or(cfg.File, "the environment"), Key: "traces.tls", Text: err.Error()}}
	}
	t := traces.New(traces.Settings{
		Endpoint: env.Endpoint, Headers: env.Headers, HeadersFrom: c.HeadersFrom, TLS: tls, Timeout: env.Timeout, Gzip: env.Gzip,
		Sample: c.Sample, Version: Version(), Log: o.Log,
	})
	o.Hooks = observe.Join(o.Hooks, t.Hooks())
	if at, err := url.Parse(env.Endpoint); err == nil {
		o.Log.Info("calls are traced", "collector", at.Host)
	}
	return t, nil
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
	t.Shutdown(flushing)
}
