package config

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// direct is the one upstream that the command line gives instead of a file.
func (l *loader) direct(c *Config, command []string, url string, headers []string) {
	var source string
	var u Upstream
	switch {
	case len(command) > 0 && url != "":
		l.fail("--", "", "a command and a URL exclude each other")
		return
	case len(command) > 0:
		source, u = "after --", l.commandLine(command)
	case url != "":
		source, u = "as a URL", l.remote(url, headers)
	default:
		return
	}
	if len(c.Upstreams) > 0 {
		l.fail(l.source, "upstreams", "are also given %s on the command line", source)
	}
	c.Upstreams = []Upstream{u}
}

// commandLine is the upstream of "-- CMD ARGS". A path counts from the working
// directory.
func (l *loader) commandLine(command []string) Upstream {
	u := defaultUpstream()
	u.Name, u.Key = "main", "--"
	u.Command, u.Args = command[0], slices.Clone(command[1:])
	u.InheritEnv = []string{"all"}
	if u.Command == "" {
		l.fail("--", "", "needs a command")
	}
	if isPath(u.Command) {
		if abs, err := filepath.Abs(u.Command); err == nil {
			u.Command = abs
		}
	}
	return u
}

// remote is the upstream of a URL and its headers.
func (l *loader) remote(url string, headers []string) Upstream {
	u := defaultUpstream()
	u.Name, u.Key, u.URL = "main", "URL", url
	if _, ok := httpURL.parse(url); !ok {
		l.fail("URL", "", "must be %s", httpURL.what)
	}
	for _, h := range headers {
		l.header(&u, h)
	}
	return u
}

// header adds one "Name: value". Values may be secrets, which lines do not show.
func (l *loader) header(u *Upstream, given string) {
	name, text, found := strings.Cut(given, ":")
	if name = strings.TrimSpace(name); !found || !headerToken.MatchString(name) {
		l.fail("--header", "", `must be "Name: value"`)
		return
	}
	for other := range u.Headers {
		if strings.EqualFold(other, name) {
			l.fail("--header", name, "is given twice")
			return
		}
	}
	text, wrong := l.expand(strings.TrimSpace(text))
	for _, w := range wrong {
		l.fail("--header", name, "%s", w)
	}
	if !isHeaderValue(text) {
		l.fail("--header", name, "must be %s", header.what)
	}
	if u.Headers == nil {
		u.Headers = make(map[string]string)
	}
	u.Headers[name] = text
}

var credential = regexp.MustCompile(`(?i)auth|cookie|key|secret|token`)

// Exposed reports whether what is sent to an upstream can be read on the way.
func (u *Upstream) Exposed() bool { return u.URL != "" && parseEndpoint(u.URL).exposed() }

// careless warns of an upstream to which we send unencrypted credentials.
func (l *loader) careless(u Upstream) {
	if !u.Exposed() {
		return
	}
	var names []string
	for name := range u.Headers {
		if credential.MatchString(name) {
			names = append(names, name)
		}
	}
	for name := range u.HeadersFrom {
		names = append(names, name)
	}
	if u.Auth != (UpstreamAuth{}) {
		names = append(names, "Authorization")
	}
	if len(names) > 0 {
		slices.Sort(names)
		l.warn(l.source, u.Key, "sends %s unencrypted to another machine", strings.Join(slices.Compact(names), ", "))
	}
}
