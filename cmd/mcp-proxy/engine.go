package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy"
	"github.com/mcp-proxy/mcp-proxy/upstream"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// eraLegacy is the era that this program's sessions speak.
const eraLegacy = "legacy"

// An engine is everything behind the front ends: the router, the host, and the
// link between them, in one process.
type engine struct {
	proxy *proxy.Proxy
	host  *upstream.Host
	log   *slog.Logger

	client link.Client
	server link.Server
	hangUp context.CancelFunc // ends the link, after which the host winds up
	force  context.CancelFunc // ends the host's upstreams at once
	wg     sync.WaitGroup     // the link's two ends, and tellStatus
	lost   chan error         // has what ended the link before its time; capacity 1
}

// newEngine returns the engine that cfg describes. start makes it run.
func newEngine(cfg *config.Config, log *slog.Logger) *engine {
	limits := limitsOf(cfg)
	e := &engine{
		log:    log,
		lost:   make(chan error, 1),
		host:   &upstream.Host{Upstreams: make(map[string]upstream.Upstream), Log: log, Limits: limits},
		client: link.Client{Log: log, Limits: limits},
	}
	e.proxy = &proxy.Proxy{
		Dialer:      proxy.DialFunc(e.dial),
		Naming:      namingOf(cfg.Prefix),
		Version:     programVersion(),
		InFlight:    cfg.Limits.InFlight,
		MaxMessage:  limits.Message,
		PageSize:    cfg.PageSize,
		ListTimeout: cfg.ListTimeout,
		Drain:       atLeast(cfg.Drain),
		Log:         log,
	}
	for _, u := range cfg.Upstreams {
		e.host.Upstreams[u.Name] = upstream.Upstream{Command: commandOf(u), StartTimeout: u.StartTimeout}
		e.proxy.Upstreams = append(e.proxy.Upstreams, routeOf(u))
	}
	e.server = link.Server{Handle: e.attach, Known: e.known, Log: log, Limits: limits}
	return e
}

// start runs the link until stop.
func (e *engine) start() {
	near, far := link.Ring()
	var linked, hosted context.Context
	linked, e.hangUp = context.WithCancel(context.Background())
	hosted, e.force = context.WithCancel(context.Background())
	e.wg.Go(func() {
		// In one process nothing can cut the link. If it ends all the same
		// there are no upstreams any more, and no use in going on.
		if err := e.client.Serve(linked, near); linked.Err() == nil {
			e.lost <- fmt.Errorf("link within the process: %w", err)
		}
	})
	e.wg.Go(func() { e.server.Serve(hosted, far) }) // ends for the same reason
	asked := make(chan os.Signal, 1)
	notifyStatus(asked)
	e.wg.Go(func() { e.tellStatus(linked, asked) })
}

// stop waits for the upstreams that sessions have left behind to end as they
// wish, and when ctx is done ends them by force, within a second.
func (e *engine) stop(ctx context.Context) {
	e.hangUp()
	defer context.AfterFunc(ctx, e.force)()
	e.wg.Wait()
	e.host.Stop(ctx)
	e.force()
}

// hangUpTime is more than sessions need to hang up when they are forced to end.
const hangUpTime = 300 * time.Millisecond

// forceSoon ends upstreams by force soon after ctx is done, when sessions have hung
// up: a client that does not read its last messages must not hold the upstreams'
// end up, too. The func that it returns calls it off.
func (e *engine) forceSoon(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { time.AfterFunc(hangUpTime, e.force) })
}

// known reports whether there is an upstream of that name.
func (e *engine) known(name string) bool {
	_, ok := e.host.Upstreams[name]
	return ok
}

func (e *engine) dial(ctx context.Context, name, key string) (jsonrpc.Conn, error) {
	return e.client.Open(ctx, link.Hello{Upstream: name, Key: key, Era: eraLegacy})
}

func (e *engine) attach(ctx context.Context, h link.Hello, c jsonrpc.Conn) error {
	return e.host.Attach(ctx, h.Upstream, h.Key, c)
}

// serve is one client's session with one upstream, "" for all.
func (e *engine) serve(ctx context.Context, name string, c jsonrpc.Conn) error {
	if name == "" {
		return e.proxy.Serve(ctx, c)
	}
	return e.proxy.ServeUpstream(ctx, name, c)
}

func limitsOf(cfg *config.Config) jsonrpc.Limits {
	return jsonrpc.Limits{Message: int(cfg.Limits.Message), Depth: cfg.Limits.Depth}
}

func namingOf(prefix string) proxy.Naming {
	if prefix == "auto" {
		return proxy.NamePrefixAuto
	}
	return proxy.Naming(prefix)
}

func commandOf(u config.Upstream) *upstream.Command {
	c := &upstream.Command{
		Path: u.Command, Args: u.Args, Dir: u.Cwd, InheritEnv: u.InheritEnv,
		WriteTimeout: u.WriteTimeout, StopGrace: u.StopGrace,
	}
	for name, value := range u.Env {
		c.Env = append(c.Env, name+"="+value)
	}
	return c
}

func routeOf(u config.Upstream) proxy.Upstream {
	return proxy.Upstream{
		Name: u.Name, Prefix: u.Prefix, StartTimeout: u.StartTimeout, RequestTimeout: u.RequestTimeout,
		Allow: u.Tools.Allow, Deny: u.Tools.Deny,
	}
}

// atLeast makes a configured 0s, which the libraries take for their default, as
// good as none.
func atLeast(d time.Duration) time.Duration { return max(d, time.Nanosecond) }
