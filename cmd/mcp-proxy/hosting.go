package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
	"github.com/mcp-proxy/mcp-proxy/upstream/pool"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
	"github.com/mcp-proxy/mcp-proxy/upstream/translate"
)

// A hosting is the far half: the upstreams of a configuration, and the end of the
// links that lead to them.
type hosting struct {
	host        *upstream.Host
	bridge      *pool.Bridge
	server      *link.Server
	log         *slog.Logger
	perUpstream int // streams that clients may have to each upstream

	mu      sync.Mutex                 // held by adopt and stop; guards the fields below
	configs map[string]config.Upstream // what host runs, by name
	remotes map[string]*remote.Server  // those of them that are remote

	proxies map[string]*linkedProxy // by id, those that links come from
	keptFor time.Duration           // after the last link of a proxy: it may dial again

	forced context.Context    // done: upstreams end at once
	force  context.CancelFunc // whoever makes a hosting calls it in the end
}

// A bridge lets clients of one era use servers of the other.
type bridge struct {
	*pool.Bridge
	*translate.Translator
}

// newHosting returns the host that cfg describes. Its error is a
// [config.Problems].
func newHosting(cfg *config.Config, log *slog.Logger) (*hosting, error) {
	limits := limitsOf(cfg)
	h := &hosting{
		host:        &upstream.Host{Log: log, Limits: limits},
		log:         log,
		perUpstream: streamsEach * cfg.Limits.Sessions,
		remotes:     make(map[string]*remote.Server),
		proxies:     make(map[string]*linkedProxy),
		keptFor:     30 * time.Second,
	}
	h.bridge = &pool.Bridge{Open: h.host.Open, Relates: h.relates, Log: log}
	h.host.Bridge = bridge{h.bridge, &translate.Translator{Open: h.host.Open, Log: log}}
	h.forced, h.force = context.WithCancel(context.Background())
	h.server = &link.Server{Handle: h.attach, Known: h.host.Known, Linked: h.linked, Unlinked: h.unlinked, Log: log, Limits: limits}
	if _, err := h.adopt(cfg); err != nil {
		return nil, err
	}
	return h, nil
}

// adopt takes over the upstreams of cfg, and announces them. It returns the names of
// those that are gone or not what they were, whose streams end; all others run on.
// With an error, a [config.Problems], nothing has changed.
func (h *hosting) adopt(cfg *config.Config) (changed []string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	next, configs := make(map[string]upstream.Upstream), make(map[string]config.Upstream)
	remotes := make(map[string]*remote.Server)
	var announced []link.Upstream
	for _, u := range cfg.Upstreams {
		configs[u.Name] = u
		announced = append(announced, link.Upstream{Name: u.Name, Settings: settingsOf(routeOf(u))})
		if old, ok := h.configs[u.Name]; ok && runsOn(old, u) {
			next[u.Name] = h.host.Upstreams[u.Name] // nobody else changes it
			remotes[u.Name] = h.remotes[u.Name]
			continue
		}
		if next[u.Name], remotes[u.Name], err = upstreamOf(u, h.host.Limits, h.log); err != nil {
			return nil, config.Problems{{Source: cfg.File, Key: u.Key + ".tls", Text: err.Error()}}
		}
	}
	for name, old := range h.configs {
		if now, ok := configs[name]; !ok || !runsOn(old, now) {
			changed = append(changed, name)
		}
	}
	if err := h.server.Announce(announced); err != nil {
		return nil, config.Problems{{Source: cfg.File, Key: "upstreams", Text: err.Error()}}
	}
	h.configs, h.remotes = configs, remotes
	h.server.SetStreams(max(leastStreams, 2*h.streams(len(configs)+len(changed))))
	h.host.Replace(next, changed)
	return changed, nil
}

const (
	// forceTime is what it takes to end upstreams by force.
	forceTime = time.Second

	// tellTime is what it takes to tell clients of the end that do not read.
	tellTime = time.Second

	// stopMargin is kept of shutdownGrace for the end of servers that ignore SIGTERM.
	stopMargin = 500 * time.Millisecond
)

// stopReserve is the part of shutdownGrace that is not for the drain: a server that was
// busy until its end has its whole stopGrace before SIGTERM.
func (h *hosting) stopReserve() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	longest := tellTime
	for _, u := range h.configs {
		longest = max(longest, u.StopGrace)
	}
	return longest + stopMargin
}

// runsOn reports whether an upstream is what it was, though it may have other names.
func runsOn(old, now config.Upstream) bool {
	old.Prefix = now.Prefix
	return reflect.DeepEqual(old, now)
}

// streamsEach is how many streams a client may have to an upstream: one in each era.
const streamsEach = 2

// leastStreams is how many streams a link from elsewhere may have, whatever the
// configuration: it does not know how many clients a proxy has.
const leastStreams = 4096

// streams is how many clients may have to so many upstreams at once. As many more
// may be ending, whose servers are still being stopped.
func (h *hosting) streams(upstreams int) int { return h.perUpstream * upstreams }

// stop ends what outlives its streams, when ctx is done by force.
func (h *hosting) stop(ctx context.Context) {
	h.bridge.Stop(ctx)
	h.host.Stop(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.remotes {
		if r != nil {
			r.Close()
		}
	}
}

// attach serves a stream of a link. When the links are to end the stream does, so
// that its upstream ends as it wishes; force is another matter.
func (h *hosting) attach(ctx context.Context, hello link.Hello, c jsonrpc.Conn) error {
	defer context.AfterFunc(ctx, func() { jsonrpc.CloseWith(c, errHostStops) })()
	return h.host.Attach(h.forced, hello.Upstream, hello.Key, cmp.Or(mcp.Era(hello.Era), mcp.Legacy), c)
}

// A linkedProxy is a proxy elsewhere that has links to this host. Guarded by hosting.mu.
type linkedProxy struct {
	links int
	gone  time.Time // when the last one ended
}

func (h *hosting) linked(proxy string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.proxies[proxy] == nil {
		h.proxies[proxy] = &linkedProxy{}
	}
	h.proxies[proxy].links++
}

func (h *hosting) unlinked(proxy string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.proxies[proxy]
	if p.links--; p.links == 0 {
		p.gone = time.Now()
		time.AfterFunc(h.keptFor, func() { h.forget(proxy) }) // after stop there is nothing left
	}
}

// forget ends what is kept for a proxy that did not come back.
func (h *hosting) forget(proxy string) {
	h.mu.Lock()
	p := h.proxies[proxy]
	gone := p != nil && p.links == 0 && time.Since(p.gone) >= h.keptFor
	if gone {
		delete(h.proxies, proxy)
	}
	last := len(h.proxies) == 0
	h.mu.Unlock()
	if gone {
		h.bridge.Forget(proxy)
	}
	if gone && last {
		h.host.EndIdle()
	}
}

// relates reports whether it is certain to which call belongs what an upstream asks.
// Over HTTP the server says so; a shared one tells for certain only whose it is.
func (h *hosting) relates(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	u := h.configs[name]
	return !u.Shared && strings.HasPrefix(u.URL, "http")
}

var errHostStops = &jsonrpc.ClosedError{Cause: "host stopped", Delivered: true}

// upstreamOf returns how the host reaches an upstream, and the remote server if it
// is one.
func upstreamOf(u config.Upstream, limits jsonrpc.Limits, log *slog.Logger) (upstream.Upstream, *remote.Server, error) {
	up := upstream.Upstream{Era: mcp.Era(u.Era), StartTimeout: u.StartTimeout, Shared: u.Shared, Roots: u.Roots}
	if u.URL == "" {
		up.Command = commandOf(u)
		return up, nil, nil
	}
	r := remoteOf(u, limits, log)
	var err error
	if r.TLS, err = clientTLS(u.TLS); err != nil {
		return up, nil, err
	}
	up.Dial, up.DialModern, up.Probe = r.Dial, r.DialModern, r.Probe
	up.Relates = strings.HasPrefix(u.URL, "http")
	return up, r, nil
}

func remoteOf(u config.Upstream, limits jsonrpc.Limits, log *slog.Logger) *remote.Server {
	return &remote.Server{
		Name: u.Name, URL: u.URL, SSE: u.Type == "sse", Headers: u.Headers, HeadersFrom: u.HeadersFrom,
		MaxConcurrent: u.MaxConcurrent, WriteTimeout: u.WriteTimeout, StopGrace: u.StopGrace, Limits: limits, Log: log,
	}
}

func commandOf(u config.Upstream) *process.Command {
	c := &process.Command{
		Path: u.Command, Args: u.Args, Dir: u.Cwd, InheritEnv: u.InheritEnv,
		WriteTimeout: u.WriteTimeout, StopGrace: u.StopGrace,
	}
	for name, value := range u.Env {
		c.Env = append(c.Env, name+"="+value)
	}
	return c
}

func routeOf(u config.Upstream) session.Upstream {
	return session.Upstream{
		Name: u.Name, Prefix: u.Prefix, StartTimeout: u.StartTimeout, RequestTimeout: u.RequestTimeout,
		Allow: u.Tools.Allow, Deny: u.Tools.Deny,
	}
}

// settings are what a host announces of an upstream beside its name: how a proxy
// is to treat it. Durations are written as in a configuration.
type settings struct {
	Prefix         *string  `json:"prefix,omitempty"`
	StartTimeout   string   `json:"startTimeout,omitempty"`
	RequestTimeout string   `json:"requestTimeout,omitempty"`
	Allow          []string `json:"allow,omitempty"`
	Deny           []string `json:"deny,omitempty"`
}

func settingsOf(u session.Upstream) json.RawMessage {
	text, err := json.Marshal(settings{u.Prefix, u.StartTimeout.String(), u.RequestTimeout.String(), u.Allow, u.Deny})
	if err != nil { // strings alone
		panic(err)
	}
	return text
}

// routeFrom is the upstream that a host has announced. Settings that cannot be
// read cannot be obeyed either, and some of them forbid.
func routeFrom(u link.Upstream) (session.Upstream, error) {
	route := session.Upstream{Name: u.Name}
	var s settings
	if u.Settings != nil && json.Unmarshal(u.Settings, &s) != nil {
		return route, errSettings
	}
	route.Prefix, route.Allow, route.Deny = s.Prefix, s.Allow, s.Deny
	if s.Prefix != nil && !fitPrefix.MatchString(*s.Prefix) {
		return route, errSettings
	}
	var errs [2]error
	route.StartTimeout, errs[0] = parseDuration(s.StartTimeout)
	route.RequestTimeout, errs[1] = parseDuration(s.RequestTimeout)
	return route, cmp.Or(errs[0], errs[1])
}

var (
	fitPrefix   = regexp.MustCompile(`^[A-Za-z0-9_-]{0,32}$`)
	errSettings = errors.New("unusable settings")
)

func parseDuration(s string) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, errSettings
	}
	return d, nil
}

// clientTLS returns what the files say, nil for none.
func clientTLS(files config.TLS) (*tls.Config, error) {
	if files == (config.TLS{}) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if c.RootCAs, err = readCA(files.CA); err != nil {
		return nil, err
	}
	c.Certificates, err = readCertificate(files)
	return c, err
}

// serverTLS returns a listener's side: with a CA it demands certificates of
// clients.
func serverTLS(files config.TLS) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if c.ClientCAs, err = readCA(files.CA); err != nil {
		return nil, err
	}
	c.Certificates, err = readCertificate(files)
	return c, err
}

func readCA(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	text, err := readPEM(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s: holds no certificate in PEM", file)
	}
	return pool, nil
}

func readCertificate(files config.TLS) ([]tls.Certificate, error) {
	if files.Cert == "" {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	return []tls.Certificate{cert}, nil
}
