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
	"github.com/mcp-proxy/mcp-proxy/internal/tap"
	"github.com/mcp-proxy/mcp-proxy/proxy/admin"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// operatorsOnly is the mode of the Unix sockets at which operators look in.
const operatorsOnly fs.FileMode = 0o600

// operators look into a Proxy or a Host, at addresses of their own.
type operators struct {
	// Static after construction.
	web    *web
	server *admin.Server
	socket string // as in Options
	log    *slog.Logger
	began  time.Time
	file   string         // of the configuration; "" for none
	dir    string         // in which the process was started; "" if that is not known
	recent *admin.Metrics // nil: nobody counts

	opened   sync.Once // by open
	err      error     // of it
	started  sync.Once
	serving  gate
	draining atomic.Bool
}

// newOperators returns what shows operators a Proxy or a Host.
func newOperators(cfg *config.Config, o Options, c counts, s *admin.Server) *operators {
	guard := &frontend.Guard{AllowedHosts: allowedHosts(cfg), Listen: cfg.Admin.Listen}
	s.Admit, s.Named, s.Metrics = guard.Admit, guard.Names, c.handler(s.Snapshot)
	if cfg.Admin.TokenFile != "" {
		s.Token = secretfile.Token(cfg.Admin.TokenFile)
	}
	if s.Payloads, s.Version = cfg.Admin.Payloads, Version(); o.AdminSocket != "" || len(cfg.Admin.Listen) > 0 {
		s.Taps = new(tap.Taps)
	}
	dir, _ := os.Getwd() // it is only shown
	return &operators{server: s, socket: o.AdminSocket, log: o.Log, began: time.Now(), file: cfg.File, dir: dir, recent: c.metrics, web: &web{
		addresses: cfg.Admin.Listen, mode: operatorsOnly, log: o.Log, server: &http.Server{
			Handler:           s,
			ReadHeaderTimeout: 10 * time.Second,
			IdleTimeout:       2 * time.Minute,
			MaxHeaderBytes:    16 << 10,
			ErrorLog:          o.anonymous.httpErrors(),
		},
	}}
}

// Counts are what hooks fill for operators. They are nil where nobody can look in.
type counts struct{ metrics *admin.Metrics }

// observe adds to the hooks what a configuration wants to know of calls, and returns what
// they fill.
func (o *Options) observe(cfg *config.Config) (c counts) {
	if cfg.Logs.Calls {
		o.Hooks = observe.Join(o.Hooks, admin.LogCalls(o.Log))
	}
	if o.AdminSocket == "" && len(cfg.Admin.Listen) == 0 {
		return counts{}
	}
	c = counts{admin.NewMetrics()}
	c.metrics.Version = Version()
	o.Hooks = observe.Join(o.Hooks, c.metrics.Hooks())
	return c
}

// keepEvents adds to the hooks what keeps events, and returns that. Where nobody can look in
// nothing is kept.
func (o *Options) keepEvents(cfg *config.Config) *admin.History {
	h := new(admin.History)
	if len(cfg.Admin.Listen) > 0 || o.AdminSocket != "" {
		o.Hooks = observe.Join(o.Hooks, h.Hooks())
	}
	return h
}

// handler returns what serves metrics, nil for none.
func (c counts) handler(snapshot func() observe.Snapshot) http.Handler {
	if c.metrics == nil {
		return nil
	}
	return c.metrics.Handler(snapshot)
}

// explaining answers operators by explain.
func explaining(explain func(name, as string) (*Explanation, error)) func(name, as string) (any, error) {
	return func(name, as string) (any, error) { return explain(name, as) }
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
func (o *operators) drain() admin.Check {
	c := admin.Check{Name: "drain"}
	if o.draining.Load() {
		c.Why = "shutting down"
	}
	return c
}

// listening is the check that fails unless clients or proxies are served wherever they
// should be.
func listening(up bool) admin.Check {
	c := admin.Check{Name: "listeners"}
	if !up {
		c.Why = "not all are up"
	}
	return c
}
