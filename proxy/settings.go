package proxy

import (
	"cmp"
	"encoding/json"
	"errors"
	"regexp"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy/session"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

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
