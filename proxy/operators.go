package proxy

import (
	"io/fs"
	"log/slog"
	"net/http"
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
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// operatorsOnly is the mode of the Unix sockets at which operators look in.
const operatorsOnly fs.FileMode = 0o600

// operators look into a Proxy or a Host, at addresses of their own.
type operators struct {
	// Static after construction.
	web    *web
	server *ops.Server
	socket string // as in Options
	log    *slog.Logger
	began  time.Time
	file   string           // of the configuration; "" for none
	dir    string           // in which the process was started; "" if that is not known
	recent *metrics.Metrics // nil if nothing is counted

	opened   sync.Once // by open
	err      error     // of it
	started  sync.Once
	serving  gate
	draining atomic.Bool
}

// newOperators returns what shows operators a Proxy or a Host.
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
	dir, _ := os.Getwd() // it is only shown
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

// observe adds the hooks that a configuration asks for. Metrics and events are kept only where operators
// can look in.
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

// open listens at all addresses of the configuration, or at none, and at the socket, if
// that can be. It does so once, and returns the same error each time.
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

// start answers operators until close. Who wants to know whether that can be has called
// open before.
func (o *operators) start() {
	o.started.Do(func() {
		if err := o.open(); err != nil {
			o.log.Warn("operators cannot look in", "err", err)
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

// drain is the check that fails once we are about to stop.
func (o *operators) drain() ops.Check {
	c := ops.Check{Name: "drain"}
	if o.draining.Load() {
		c.Why = "shutting down"
	}
	return c
}

// listening is the check that fails unless clients or proxies are served wherever they
// should be.
func listening(up bool) ops.Check {
	c := ops.Check{Name: "listeners"}
	if !up {
		c.Why = "not all are up"
	}
	return c
}
