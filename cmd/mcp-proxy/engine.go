package main

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// An engine is everything behind the front ends: the router, the host of the
// upstreams that run here, the link between them, and the links to hosts
// elsewhere.
type engine struct {
	proxy *session.Router
	near  *hosting    // what runs here
	link  link.Client // to near
	far   *links
	log   *slog.Logger

	hangUp context.CancelFunc // ends the links, after which the host winds up
	wg     sync.WaitGroup     // the links' ends, and tellStatus
}

// newEngine returns the engine that cfg describes. start makes it run. The error
// is a [config.Problems].
func newEngine(cfg *config.Config, log *slog.Logger) (*engine, error) {
	limits := limitsOf(cfg)
	e := &engine{log: log, link: link.Client{Log: log, Limits: limits, Trusted: true}}
	e.proxy = &session.Router{
		Dialer:      session.DialFunc(e.dial),
		Naming:      catalog.Naming(strings.TrimPrefix(cfg.Prefix, "auto")),
		Version:     programVersion(),
		ID:          rand.Text(),
		InFlight:    cfg.Limits.InFlight,
		MaxMessage:  limits.Message,
		PageSize:    cfg.PageSize,
		ListTimeout: cfg.ListTimeout,
		Drain:       atLeast(cfg.Drain),
		Log:         log,
	}
	var err error
	if e.near, err = newHosting(cfg, log); err != nil {
		return nil, err
	}
	e.near.server.Trusted = true
	e.link.Streams = e.near.streams(len(cfg.Upstreams))
	if e.far, err = newLinks(cfg, e.proxy, log); err != nil {
		return nil, err
	}
	e.proxy.Update(e.far.setLocked()) // nothing runs yet
	return e, nil
}

// start runs the links until stop.
func (e *engine) start() {
	var linked context.Context
	linked, e.hangUp = context.WithCancel(context.Background())
	e.wg.Go(func() { e.join(linked) })
	e.far.start(linked)
	asked := make(chan os.Signal, 1)
	notifyStatus(asked)
	e.wg.Go(func() { e.near.tellStatus(linked, asked, e.log) })
}

// join links the proxy to what runs here until ctx ends. Nothing that clients do ends
// the link: if it ends all the same, its streams do, and there is another.
func (e *engine) join(ctx context.Context) {
	for ctx.Err() == nil {
		near, far := link.Ring()
		e.wg.Go(func() { e.near.server.Serve(e.near.forced, far) }) // ends for the same reason
		if err := e.link.Serve(ctx, near); ctx.Err() == nil {
			e.log.Error("link within the process lost", "err", err)
			select {
			case <-time.After(pauseBefore):
			case <-ctx.Done():
			}
		}
	}
}

// pauseBefore another link is less than openings of streams wait for it.
const pauseBefore = 100 * time.Millisecond

// stop waits for the upstreams that sessions have left behind to end as they
// wish, and when ctx is done ends them by force, within a second.
func (e *engine) stop(ctx context.Context) {
	e.hangUp()
	defer context.AfterFunc(ctx, e.near.force)()
	e.far.wait()
	e.wg.Wait()
	e.near.stop(ctx)
	e.near.force()
}

// hangUpTime is more than sessions need to hang up when they are forced to end.
const hangUpTime = 300 * time.Millisecond

// forceSoon ends upstreams by force soon after ctx is done, when sessions have hung
// up: a client that does not read its last messages must not hold the upstreams'
// end up, too. The func that it returns calls it off.
func (e *engine) forceSoon(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { time.AfterFunc(hangUpTime, e.near.force) })
}

// known reports whether there is an upstream of that name, here or elsewhere.
func (e *engine) known(name string) bool {
	return e.near.host.Known(name) || e.far.owner(name) != nil
}

func (e *engine) dial(ctx context.Context, name, key string, era mcp.Era) (jsonrpc.Conn, error) {
	hello := link.Hello{Upstream: name, Key: key, Era: string(era)}
	if f := e.far.owner(name); f != nil {
		return f.client.Open(ctx, hello)
	}
	return e.link.Open(ctx, hello)
}

// adopt takes over the upstreams and links of a new configuration, and tells clients.
// With an error nothing has changed.
func (e *engine) adopt(cfg *config.Config) error {
	links, err := e.far.plan(cfg)
	if err != nil {
		return err
	}
	changed, err := e.near.adopt(cfg)
	if err != nil {
		return err
	}
	e.link.SetStreams(e.near.streams(len(cfg.Upstreams) + len(changed))) // which are still ending
	e.far.adopt(cfg, links)
	e.proxy.Returned(changed...)
	return nil
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

// atLeast makes a configured 0s, which the libraries take for their default, as
// good as none.
func atLeast(d time.Duration) time.Duration { return max(d, time.Nanosecond) }
