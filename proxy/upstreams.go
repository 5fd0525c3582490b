package proxy

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
	"github.com/mcp-proxy/mcp-proxy/upstream/replay"
)

// A remoteServer is a remote server, and what proves to it who we are.
type remoteServer struct {
	*remote.Server
	credentials credentials // nil: none
}

// Close closes what is kept for sessions. All must have been closed.
func (r *remoteServer) Close() {
	r.Server.Close()
	r.closeCredentials()
}

// closeCredentials ends what the credentials do by themselves: no session begins any more.
func (r *remoteServer) closeCredentials() {
	if r != nil && r.credentials != nil {
		r.credentials.Close()
	}
}

// upstreamOf returns how the host reaches an upstream, and the remote server if it
// is one.
func upstreamOf(u config.Upstream, limits jsonrpc.Limits, p *prover) (upstream.Upstream, *remoteServer, error) {
	up := upstream.Upstream{Era: mcp.Era(u.Era), StartTimeout: u.StartTimeout, Shared: u.Shared, Roots: u.Roots}
	if u.Command != "" {
		up.Command = commandOf(u)
		return up, nil, nil
	}
	r := &remoteServer{Server: remoteOf(u, limits, p.log)}
	var err error
	if r.TLS, err = clientTLS(u.TLS); err != nil {
		return up, nil, err
	}
	if r.credentials, err = p.upstream(u); err != nil {
		return up, nil, err
	}
	if r.credentials != nil {
		r.Credentials = r.credentials
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

// serverLimitsOf are those of messages from servers, whose ids may be as long as names.
func serverLimitsOf(cfg *config.Config) jsonrpc.Limits {
	limits := limitsOf(cfg)
	limits.ID = mcp.MaxRouted
	return limits
}

func limitsOf(cfg *config.Config) jsonrpc.Limits {
	return jsonrpc.Limits{Message: int(cfg.Limits.Message), Depth: cfg.Limits.Depth}
}

// routeOf is what the router knows of an upstream that runs here.
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

// announcementOf is how a host announces an upstream.
func announcementOf(u config.Upstream) link.Upstream {
	r := routeOf(u)
	text, err := json.Marshal(settings{r.Prefix, r.StartTimeout.String(), r.RequestTimeout.String(), r.Allow, r.Deny})
	if err != nil { // strings alone
		panic(err)
	}
	return link.Upstream{Name: u.Name, Settings: text}
}

// routeFrom is what the router knows of an upstream that a host has announced.
// Settings that cannot be read cannot be obeyed either, and some of them forbid.
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

// Quiet returns a configuration with the same upstreams that a program uses for a moment:
// without listeners, log lines for calls, traces, hosts that dial, or servers that start by themselves.
func Quiet(cfg *config.Config) *config.Config {
	quiet := *cfg
	quiet.Listen, quiet.Admin, quiet.Logs = nil, config.Admin{}, config.Logs{}
	quiet.Traces = config.Traces{Off: true}
	quiet.Upstreams = slices.Clone(cfg.Upstreams)
	if cfg.Prefix == "auto" && len(cfg.Upstreams)+len(cfg.Links) > 1 {
		quiet.Prefix = "always" // though what is left may be one
	}
	for i := range quiet.Upstreams {
		quiet.Upstreams[i].Required = false
	}
	quiet.Links = slices.DeleteFunc(slices.Clone(cfg.Links), func(l config.Link) bool { return l.Accept })
	return &quiet
}

// transportOf is how an upstream is reached.
func transportOf(u config.Upstream) string {
	at, err := url.Parse(u.URL)
	switch {
	case u.URL == "" && u.Command == "": // all that is known of it is its name
		return "link"
	case u.URL == "":
		return "stdio"
	case u.Type == "sse":
		return "http+sse"
	case err == nil && strings.HasPrefix(at.Scheme, "ws"):
		return "websocket"
	}
	return "http"
}

// Replay answers one client, on in and out, from the recording of an upstream in a file; the
// name may be "" if there is one upstream alone. It returns when in has ended.
func Replay(file, upstream string, in, out *os.File) error {
	recording, err := replay.Open(file, upstream)
	if err != nil {
		return err
	}
	err = recording.Serve(jsonrpc.NewLineConn(in, out, jsonrpc.Limits{ID: mcp.MaxRouted}, in.Close))
	if err == io.EOF {
		return nil
	}
	return err
}
