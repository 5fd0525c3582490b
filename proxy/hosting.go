package proxy

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/upstream"
	"github.com/mcp-proxy/mcp-proxy/upstream/eras"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
)

// A hosting is the half with the servers: the upstreams of a configuration, and the far end of
// the links to them.
type hosting struct {
	host        *upstream.Host
	bridge      *eras.Bridge
	server      *link.Server // of a Host; nil in a Proxy, which has a link.Local
	log         *slog.Logger
	prover      *prover
	store       *lists.Store // makes the digests that it announces
	required    required
	proxies     linkedProxies
	rejections  rejections
	perUpstream int                                              // streams that clients may have to each upstream
	tap         observe.Tap                                      // of a Host; nil in a Proxy, whose sessions have taps
	listed      func(upstream, tool string) ([]mcp.Mirror, bool) // what the catalog of a Proxy has; a Host has none

	mu      sync.Mutex                 // held by adopt and stop; guards the fields below
	configs map[string]config.Upstream // of the upstreams of host, by name
	remotes map[string]*remote.Server  // of the same; nil for processes

	forced context.Context    // when it is done, upstreams end at once
	force  context.CancelFunc // called by stop at the latest
}

// newHosting returns the hosting that cfg describes. Its proxy is local if it is in this process.
// The error is a [config.Problems].
func newHosting(cfg *config.Config, o Options, local bool) (*hosting, error) {
	log, limits := o.Log, serverLimitsOf(cfg)
	h := &hosting{
		host:        &upstream.Host{Log: log, Limits: limits, ClientsOperate: o.Stdio, Hooks: o.Hooks},
		log:         log,
		prover:      newProver(cfg, o),
		store:       lists.NoStore(),
		perUpstream: streamsEach * cfg.Limits.Sessions,
		remotes:     make(map[string]*remote.Server),
		listed:      func(string, string) ([]mcp.Mirror, bool) { return nil, false },
	}
	if !local { // a local proxy has a store of its own
		h.store = openStore(cfg, o)
	}
	h.proxies = linkedProxies{keptFor: 30 * time.Second, forget: h.forget}
	h.bridge = &eras.Bridge{Open: h.host.Open, Relates: h.relates, IdleOf: h.idleStop, Log: log}
	h.host.Bridge = h.bridge
	h.forced, h.force = context.WithCancel(context.Background())
	h.required.host, h.required.forced = h.host, h.forced
	if !local {
		h.server = h.newServer(limits, o)
	}
	first, err := h.plan(cfg)
	if err != nil {
		return nil, err
	}
	h.adopt(cfg, first)
	return h, nil
}

// newServer returns the far end of links from other processes.
func (h *hosting) newServer(limits jsonrpc.Limits, o Options) *link.Server {
	h.rejections = rejections{known: h.host.Known, log: h.log, hooks: o.Hooks}
	s := &link.Server{
		Handle: h.attach, Known: h.host.Known, Linked: h.proxies.linked, Unlinked: h.proxies.unlinked,
		Rejected: h.rejections.update, Log: h.log, Limits: limits,
	}
	if o.Hooks.Happened != nil {
		s.Lost = func(event string, err error, lived time.Duration) {
			o.Hooks.Happened(linkEvent(event, "the link to a proxy was lost", err, time.Now().Add(-lived)))
		}
	}
	return s
}

// A serverPlan is the upstreams of another configuration, for adopt.
type serverPlan struct {
	configs   map[string]config.Upstream
	remotes   map[string]*remote.Server
	upstreams map[string]upstream.Upstream
	changed   []string // removed and changed ones, whose streams will end; all others continue
}

// plan returns what runs the upstreams of cfg, and announces them. After an error, which is a
// [config.Problems], nothing has changed.
func (h *hosting) plan(cfg *config.Config) (*serverPlan, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	next := &serverPlan{make(map[string]config.Upstream), make(map[string]*remote.Server), make(map[string]upstream.Upstream), nil}
	var announced []link.Upstream
	for _, u := range cfg.Upstreams {
		next.configs[u.Name] = u
		announced = append(announced, announcementOf(u, h.store))
		if old, ok := h.configs[u.Name]; ok && runsOn(old, u) {
			same := h.host.Upstreams[u.Name] // only adopt changes it
			same.Spare = u.Spare
			next.upstreams[u.Name] = same
			next.remotes[u.Name] = h.remotes[u.Name]
			continue
		}
		up, r, err := upstreamOf(u, h.host.Limits, h.prover)
		if err != nil {
			return nil, config.Problems{{Source: cfg.File, Key: u.Key + ".tls", Text: err.Error()}}
		}
		next.upstreams[u.Name], next.remotes[u.Name] = up, r
		if r != nil {
			r.Happened = h.host.Hooks.Happened
			r.Listed = func(tool string) ([]mcp.Mirror, bool) { return h.listed(u.Name, tool) }
		}
	}
	for name, old := range h.configs {
		if now, ok := next.configs[name]; !ok || !runsOn(old, now) {
			next.changed = append(next.changed, name)
		}
	}
	if h.server != nil { // a local proxy has the configuration, and may have names that cannot be announced
		if err := h.server.Announce(announced); err != nil {
			return nil, config.Problems{{Source: cfg.File, Key: "upstreams", Text: err.Error()}}
		}
	}
	return next, nil
}

// adopt runs what plan has returned for cfg. It returns the remote servers that have ended, whose credentials the
// caller closes.
func (h *hosting) adopt(cfg *config.Config, next *serverPlan) (ended []*remote.Server) {
	defer h.bridge.Changed(next.changed) // without the lock, which the bridge may take
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, name := range next.changed {
		ended = append(ended, h.remotes[name])
	}
	h.configs, h.remotes = next.configs, next.remotes
	if h.server != nil {
		h.server.SetStreams(max(leastStreams, 2*h.streams(len(next.configs)+len(next.changed))))
	}
	h.host.Replace(next.upstreams, next.changed)
	h.required.adopt(cfg.Upstreams)
	return ended
}

// start starts what runs without clients.
func (h *hosting) start() {
	h.host.StartSpares()
	h.required.start()
}

// longestStop returns the longest stopGrace of an upstream.
func (h *hosting) longestStop() (longest time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, u := range h.configs {
		longest = max(longest, u.StopGrace)
	}
	return longest
}

// streamsEach is how many streams a client may have to an upstream: one in each era.
const streamsEach = 2

// leastStreams is how many streams a link from elsewhere may have, whatever the
// configuration: it does not know how many clients a proxy has.
const leastStreams = 4096

// streams returns how many streams clients may have to so many upstreams at once. As many more
// may be ending while their servers stop.
func (h *hosting) streams(upstreams int) int { return h.perUpstream * upstreams }

// finish lets what is in flight finish, until ctx is done.
func (h *hosting) finish(ctx context.Context) {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for h.busy() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		case <-h.forced.Done():
			return
		}
	}
}

// busy reports whether a request waits for an answer. Requests to servers that are stopping do
// not count, nor do suspended calls, whose clients may never return.
func (h *hosting) busy() bool {
	inFlight := 0
	for _, s := range h.host.Status() {
		if s.State == upstream.StateStarting || s.State == upstream.StateRunning {
			inFlight += s.InFlight
		}
	}
	return inFlight > h.bridge.Suspended()
}

// stop stops the servers that outlive their streams, at once if forced is done.
func (h *hosting) stop() {
	h.required.stop()
	h.required.wait()
	h.bridge.Stop(h.forced)
	h.host.Stop(h.forced)
	h.mu.Lock()
	defer h.mu.Unlock()
	var all sync.WaitGroup // each may wait a moment for its token
	for _, r := range h.remotes {
		if r != nil {
			all.Go(func() {
				r.Close()
				closeCredentials(r)
			})
		}
	}
	all.Wait()
	h.force()
}

// attach is the [link.Handler]. It closes the stream when ctx ends, and then the upstream
// stops by itself; h.force stops it at once.
func (h *hosting) attach(ctx context.Context, hello link.Hello, c jsonrpc.Conn, over func(error)) {
	stream := c
	unhook := context.AfterFunc(ctx, func() { jsonrpc.CloseWith(stream, errHostStops) })
	c = h.tap.Conn(observe.Point{
		Side: observe.SideUpstream, Session: hello.Key[:min(len(hello.Key), 8)], Upstream: hello.Upstream, Away: true,
	}, c)
	forced := jsonrpc.WithForwarded(h.forced, jsonrpc.ForwardedIn(ctx))
	h.host.Attach(forced, hello.Upstream, hello.Key, cmp.Or(mcp.Era(hello.Era), mcp.Legacy), c, func(err error) {
		unhook()
		over(err)
	})
}

// forget ends what the hosting keeps for a proxy that did not return.
func (h *hosting) forget(proxy string, last bool) {
	h.bridge.Forget(proxy)
	if last {
		h.host.EndIdle()
	}
}

// relates reports whether an upstream's requests tell which call they belong to. Over HTTP they
// do. A shared upstream tells only the client.
func (h *hosting) relates(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	u := h.configs[name]
	return !u.Shared && strings.HasPrefix(u.URL, "http")
}

// idleStop returns the idleStop of an upstream.
func (h *hosting) idleStop(name string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.configs[name].IdleStop
}

// isStarting reports whether a server of an upstream starts, and none runs.
func (h *hosting) isStarting(name string) bool {
	return availabilityOf(h.host.Status())[name] == observe.Starting
}

// configured returns the names of the upstreams, sorted.
func (h *hosting) configured() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.configs))
}

// remote returns the remote server of an upstream, nil for a process or an unknown name.
func (h *hosting) remote(name string) *remote.Server {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.remotes[name]
}

var errHostStops = &jsonrpc.ClosedError{Cause: jsonrpc.CauseHostStopped, Delivered: true}

// open attaches a stream without a link. The caller closes it, and the host waits for its end.
func (h *hosting) open(_ context.Context, name, key string, era mcp.Era) (jsonrpc.Conn, error) {
	near, far := jsonrpc.Pipe()
	c := &attached{PipeConn: near, ended: make(chan struct{})}
	go h.host.Attach(h.forced, name, key, era, far, c.over)
	return c, nil
}

// An attached Conn returns from Recv why its stream has ended.
type attached struct {
	*jsonrpc.PipeConn
	ended chan struct{} // closed by over
	err   error         // set before ended is closed
}

func (a *attached) over(err error) {
	a.err = err
	close(a.ended)
}

// Recv implements [jsonrpc.Conn].
func (a *attached) Recv() (*jsonrpc.Message, error) {
	m, err := a.PipeConn.Recv()
	if err != nil {
		<-a.ended
		err = a.err
	}
	return m, err
}

// runs returns a configuration with the current upstreams.
func (h *hosting) runs() *config.Config {
	h.mu.Lock()
	defer h.mu.Unlock()
	cfg := &config.Config{}
	for _, name := range slices.Sorted(maps.Keys(h.configs)) {
		cfg.Upstreams = append(cfg.Upstreams, h.configs[name])
	}
	return cfg
}

// availabilityOf returns the states of upstreams for clients by name: that of the most available server.
func availabilityOf(servers []upstream.Status) map[string]string {
	ranks := []string{"", observe.Failing, observe.Starting, observe.Running}
	all := make(map[string]string)
	for _, s := range servers {
		now := ""
		switch {
		case s.State == upstream.StateRunning:
			now = observe.Running
		case s.State == upstream.StateStarting:
			now = observe.Starting
		case s.Failed > 0:
			now = observe.Failing
		}
		if slices.Index(ranks, now) > slices.Index(ranks, all[s.Upstream]) {
			all[s.Upstream] = now
		}
	}
	return all
}

// openStore returns the store of what servers list.
func openStore(cfg *config.Config, o Options) *lists.Store {
	dir := cmp.Or(cfg.CacheDir, o.CacheDir)
	if dir == "" {
		return lists.NoStore()
	}
	store, err := lists.OpenStore(dir)
	switch {
	case err == nil:
		return store
	case cfg.CacheDir != "":
		o.Log.Warn("cacheDir cannot be used, so lists are not kept between runs", "err", err)
	default:
		o.Log.Debug("no cache directory, so lists are not kept between runs", "err", err)
	}
	return lists.NoStore()
}
