package proxy

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
	"github.com/mcp-proxy/mcp-proxy/proxy/lists"
	"github.com/mcp-proxy/mcp-proxy/proxy/policy"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
	"github.com/mcp-proxy/mcp-proxy/upstream/replay"
)

// upstreamOf returns how the host reaches an upstream, and its remote server unless it is a process.
func upstreamOf(u config.Upstream, limits jsonrpc.Limits, p *prover) (upstream.Upstream, *remote.Server, error) {
	up := upstream.Upstream{Era: mcp.Era(u.Era), StartTimeout: u.StartTimeout, IdleStop: u.IdleStop, Shared: u.Shared, Roots: u.Roots}
	if u.Command != "" {
		up.Command, up.Spare = commandOf(u), u.Spare
		return up, nil, nil
	}
	r := remoteOf(u, limits, p.log)
	var err error
	if r.TLS, err = clientTLS(u.TLS, u.URL, p.log.With("upstream", u.Name)); err != nil {
		return up, nil, err
	}
	c, err := p.upstream(u)
	if err != nil {
		return up, nil, err
	}
	if c != nil {
		r.Credentials = c
	}
	up.Dial, up.DialModern, up.Probe = r.Dial, r.DialModern, r.Probe
	up.Relates, up.Alone = strings.HasPrefix(u.URL, "http"), len(u.ForwardHeaders) > 0
	return up, r, nil
}

func remoteOf(u config.Upstream, limits jsonrpc.Limits, log *slog.Logger) *remote.Server {
	return &remote.Server{
		Name: u.Name, URL: u.URL, SSE: u.Type == "sse", Headers: u.Headers, HeadersFrom: u.HeadersFrom, Forward: targetsOf(u),
		MaxConcurrent: u.MaxConcurrent, WriteTimeout: u.WriteTimeout, StartTimeout: u.StartTimeout, StopGrace: u.StopGrace,
		Limits: limits, Log: log,
	}
}

// targetsOf returns the names of the headers of clients in requests to a remote server.
func targetsOf(u config.Upstream) (names []string) {
	for _, f := range forwardOf(u) {
		names = append(names, f.To)
	}
	return names
}

// forwardOf returns the headers of clients that an upstream gets.
func forwardOf(u config.Upstream) (all []session.Forward) {
	once := strings.HasPrefix(u.URL, "ws")
	for _, h := range u.ForwardHeaders { // of a program, if config has not completed it
		from, to := http.CanonicalHeaderKey(h.From), http.CanonicalHeaderKey(cmp.Or(h.To, h.From))
		all = append(all, session.Forward{From: from, To: to, Identity: h.Identity || to == "Authorization", Once: once})
	}
	return all
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

// serverLimitsOf returns the limits of messages from servers, whose ids may be as long as names.
func serverLimitsOf(cfg *config.Config) jsonrpc.Limits {
	limits := limitsOf(cfg)
	limits.ID = mcp.MaxRouted
	return limits
}

func limitsOf(cfg *config.Config) jsonrpc.Limits {
	return jsonrpc.Limits{Message: int(cfg.Limits.Message), Depth: cfg.Limits.Depth}
}

// routeOf returns what the router needs to know of an upstream that runs here.
func routeOf(u config.Upstream) session.Upstream {
	return session.Upstream{
		Name: u.Name, Forward: forwardOf(u), Prefix: u.Prefix, StartTimeout: u.StartTimeout, RequestTimeout: u.RequestTimeout, IdleStop: u.IdleStop,
		Allow: u.Tools.Allow, Deny: u.Tools.Deny, Methods: u.Methods,
		Lazy:   u.Start == "lazy" || u.Start == "" && !u.Required && u.ForwardHeaders == nil, // what it lists to one client is not for others
		Shared: u.Shared || u.URL != "", Process: u.URL == "",
	}
}

// fingerprint returns what decides about the lists of an upstream that runs here, as JSON.
func fingerprint(u config.Upstream) []byte {
	inherited := make(map[string]string)
	for _, name := range u.InheritEnv {
		if value, ok := os.LookupEnv(name); ok {
			inherited[name] = value
		}
	}
	text, err := json.Marshal([]any{u.Command, u.Args, u.Env, inherited, u.InheritEnv, u.Cwd, u.URL, u.Type, u.Headers, u.HeadersFrom, u.Auth, u.TLS, u.Era, u.Roots})
	if err != nil { // impossible for these types
		panic(err)
	}
	return text
}

// settings are what a host announces of an upstream besides its name, as JSON. Durations are
// written as in a configuration.
type settings struct {
	Prefix         *string  `json:"prefix,omitempty"`
	StartTimeout   string   `json:"startTimeout,omitempty"`
	RequestTimeout string   `json:"requestTimeout,omitempty"`
	Start          string   `json:"start,omitempty"`  // "eager" or none
	Digest         string   `json:"digest,omitempty"` // of its configuration; older hosts announce none
	Allow          []string `json:"allow,omitempty"`
	Deny           []string `json:"deny,omitempty"`
	IdleStop       string   `json:"idleStop,omitempty"` // older hosts announce none
	Methods        []string `json:"methods,omitempty"`  // likewise
	Shared         bool     `json:"shared,omitempty"`   // all clients use one server; older hosts do not say
}

// announcementOf returns what a host announces of an upstream. The digests are those of a store.
func announcementOf(u config.Upstream, store *lists.Store) link.Upstream {
	r := routeOf(u)
	s := settings{Prefix: r.Prefix, StartTimeout: r.StartTimeout.String(), RequestTimeout: r.RequestTimeout.String(), Allow: r.Allow, Deny: r.Deny, Methods: r.Methods, Shared: r.Shared}
	if r.IdleStop > 0 {
		s.IdleStop = r.IdleStop.String()
	}
	s.Digest = store.Digest(fingerprint(u))
	if u.Start == "eager" {
		s.Start = u.Start
	}
	text, err := json.Marshal(s)
	if err != nil { // impossible for strings
		panic(err)
	}
	return link.Upstream{Name: u.Name, Settings: text}
}

// routeFrom returns what the router needs to know of an upstream that a host has announced.
// Unreadable settings are an error, because they may forbid something.
func routeFrom(u link.Upstream) (session.Upstream, error) {
	route := session.Upstream{Name: u.Name}
	var s settings
	if u.Settings != nil && json.Unmarshal(u.Settings, &s) != nil {
		return route, errSettings
	}
	route.Prefix, route.Allow, route.Deny, route.Lazy = s.Prefix, s.Allow, s.Deny, s.Start != "eager"
	route.Digest, route.Shared, route.Methods = s.Digest, s.Shared, s.Methods
	if s.Prefix != nil && (len(*s.Prefix) > 32 || !fitPrefix.MatchString(*s.Prefix)) {
		return route, errSettings
	}
	var errs [3]error
	route.StartTimeout, errs[0] = parseDuration(s.StartTimeout)
	route.RequestTimeout, errs[1] = parseDuration(s.RequestTimeout)
	route.IdleStop, errs[2] = parseDuration(s.IdleStop)
	return route, cmp.Or(errs[:]...)
}

var (
	fitPrefix   = regexp.MustCompile(`^[A-Za-z0-9_-]*$`)
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

// Quiet returns a configuration with the same upstreams for a program that uses them for a moment:
// without listeners, log lines for calls, traces, hosts that dial, or servers that start by themselves.
func Quiet(cfg *config.Config) *config.Config {
	quiet := *cfg
	quiet.Listen, quiet.Admin, quiet.Logs = nil, config.Admin{}, config.Logs{}
	quiet.Cluster = config.Cluster{}
	quiet.Traces = config.Traces{Off: true}
	quiet.Upstreams = slices.Clone(cfg.Upstreams)
	if cfg.Prefix == "auto" && len(cfg.Upstreams)+len(cfg.Links) > 1 {
		quiet.Prefix = "always" // even if one is left
	}
	for i := range quiet.Upstreams {
		quiet.Upstreams[i].Required, quiet.Upstreams[i].Spare = false, 0
	}
	quiet.Links = slices.DeleteFunc(slices.Clone(cfg.Links), func(l config.Link) bool { return l.Accept })
	return &quiet
}

// transportOf returns the transport of an upstream for trials.
func transportOf(u config.Upstream) string {
	at, err := url.Parse(u.URL)
	switch {
	case u.URL == "" && u.Command == "": // only its name is known
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

// Replay answers one client on in and out from the recording of an upstream in a file. The
// name may be "" if the file has a single upstream. Replay returns nil at the end of in.
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

// named returns the upstream of a configuration that the name of a tool begins with, by its prefix or
// by its name in policies, and the rest of the name; nil for none. A sole upstream has all names.
func named(cfg *config.Config, tool string) (found *config.Upstream, rest string) {
	naming := catalog.Naming(strings.TrimPrefix(cfg.Prefix, "auto"))
	sole := len(cfg.Upstreams) == 1 && len(cfg.Links) == 0
	longest := ""
	for i := range cfg.Upstreams {
		u := &cfg.Upstreams[i]
		for _, prefix := range []string{naming.Prefix(u.Name, u.Prefix, !sole), policy.Name(u.Name, "")} {
			if len(prefix) > len(longest) && strings.HasPrefix(tool, prefix) {
				found, longest = u, prefix
			}
		}
	}
	if found == nil && sole {
		found = &cfg.Upstreams[0]
	}
	return found, strings.TrimPrefix(tool, longest)
}

// Narrow returns a configuration with only the upstream that the name of a tool begins with, if there is one, so that
// nothing else starts. Names do not change.
func Narrow(cfg *config.Config, tool string) *config.Config {
	narrow := Quiet(cfg)
	u, _ := named(cfg, tool)
	if u == nil || len(cfg.Upstreams)+len(cfg.Links) < 2 {
		return narrow
	}
	narrow.Upstreams, narrow.Links = []config.Upstream{*u}, nil
	return narrow
}

// runsOn reports whether the servers of an upstream can continue with a new configuration. A new
// prefix, readiness that waits for it, or when new ones start does not matter to them.
func runsOn(old, now config.Upstream) bool {
	old.Prefix, old.Required, old.Start, old.Spare = now.Prefix, now.Required, now.Start, now.Spare
	return reflect.DeepEqual(old, now)
}
