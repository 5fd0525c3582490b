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
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy"
	"github.com/mcp-proxy/mcp-proxy/upstream"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
)

// A hosting is the far half: the upstreams of a configuration, and the end of the
// links that lead to them.
type hosting struct {
	host    *upstream.Host
	server  *link.Server
	remotes []*remote.Server

	forced context.Context    // done: upstreams end at once
	force  context.CancelFunc // whoever makes a hosting calls it in the end
}

// newHosting returns the host that cfg describes. Its error is a
// [config.Problems].
func newHosting(cfg *config.Config, log *slog.Logger) (*hosting, error) {
	limits := limitsOf(cfg)
	h := &hosting{host: &upstream.Host{Upstreams: make(map[string]upstream.Upstream), Log: log, Limits: limits}}
	h.forced, h.force = context.WithCancel(context.Background())
	h.server = &link.Server{Handle: h.attach, Known: h.known, Log: log, Limits: limits}
	for _, u := range cfg.Upstreams {
		up, err := h.upstreamOf(u, limits, log)
		if err != nil {
			return nil, config.Problems{{Source: cfg.File, Key: u.Key + ".tls", Text: err.Error()}}
		}
		h.host.Upstreams[u.Name] = up
		h.server.Upstreams = append(h.server.Upstreams, link.Upstream{Name: u.Name, Settings: settingsOf(routeOf(u))})
	}
	return h, nil
}

// stop ends what outlives its streams, when ctx is done by force.
func (h *hosting) stop(ctx context.Context) {
	h.host.Stop(ctx)
	for _, r := range h.remotes {
		r.Close()
	}
}

// known reports whether there is an upstream of that name.
func (h *hosting) known(name string) bool {
	_, ok := h.host.Upstreams[name]
	return ok
}

// attach serves a stream of a link. When the links are to end the stream does, so
// that its upstream ends as it wishes; force is another matter.
func (h *hosting) attach(ctx context.Context, hello link.Hello, c jsonrpc.Conn) error {
	defer context.AfterFunc(ctx, func() { jsonrpc.CloseWith(c, errHostStops) })()
	return h.host.Attach(h.forced, hello.Upstream, hello.Key, c)
}

var errHostStops = &jsonrpc.ClosedError{Cause: "host stopped", Delivered: true}

func (h *hosting) upstreamOf(u config.Upstream, limits jsonrpc.Limits, log *slog.Logger) (upstream.Upstream, error) {
	up := upstream.Upstream{StartTimeout: u.StartTimeout, Shared: u.Shared, Roots: u.Roots}
	if u.URL == "" {
		up.Command = commandOf(u)
		return up, nil
	}
	r := remoteOf(u, limits, log)
	var err error
	if r.TLS, err = clientTLS(u.TLS); err != nil {
		return up, err
	}
	h.remotes = append(h.remotes, r)
	up.Dial = r.Dial
	up.Relates = strings.HasPrefix(u.URL, "http")
	return up, nil
}

func remoteOf(u config.Upstream, limits jsonrpc.Limits, log *slog.Logger) *remote.Server {
	return &remote.Server{
		Name: u.Name, URL: u.URL, SSE: u.Type == "sse", Headers: u.Headers, HeadersFrom: u.HeadersFrom,
		MaxConcurrent: u.MaxConcurrent, WriteTimeout: u.WriteTimeout, StopGrace: u.StopGrace, Limits: limits, Log: log,
	}
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

// settings are what a host announces of an upstream beside its name: how a proxy
// is to treat it. Durations are written as in a configuration.
type settings struct {
	Prefix         *string  `json:"prefix,omitempty"`
	StartTimeout   string   `json:"startTimeout,omitempty"`
	RequestTimeout string   `json:"requestTimeout,omitempty"`
	Allow          []string `json:"allow,omitempty"`
	Deny           []string `json:"deny,omitempty"`
}

func settingsOf(u proxy.Upstream) json.RawMessage {
	text, err := json.Marshal(settings{u.Prefix, u.StartTimeout.String(), u.RequestTimeout.String(), u.Allow, u.Deny})
	if err != nil { // strings alone
		panic(err)
	}
	return text
}

// routeFrom is the upstream that a host has announced. Settings that cannot be
// read cannot be obeyed either, and some of them forbid.
func routeFrom(u link.Upstream) (proxy.Upstream, error) {
	route := proxy.Upstream{Name: u.Name}
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
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate", file)
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
