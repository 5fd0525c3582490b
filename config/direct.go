package config

import (
	"net/url"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"

	"github.com/mattn/go-shellwords"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
	"github.com/mcp-proxy/mcp-proxy/internal/lazyregexp"
)

// direct adds the upstreams that the command line defines.
func (r *reader) direct(c *Config, o Options) {
	var source string
	var all []Upstream
	switch {
	case len(o.Command) > 0 && o.URL != "":
		r.fail("--", "", "a command and a URL exclude each other")
		return
	case len(o.Command) > 0 && len(o.Servers) > 0:
		r.fail("--server", "", "excludes a command after --: give that a name, too")
		return
	case len(o.Command) > 0:
		source, all = "after --", []Upstream{r.commandLine("main", "--", o.Command)}
	case o.URL != "":
		source, all = "as a URL", []Upstream{r.remote(hostOf(o.URL), "URL", o.URL, o.Headers)}
	case len(o.Servers) > 0:
		source, all = "with --server", r.servers(o.Servers)
	}
	r.commands(all, o)
	for _, u := range all {
		if o.Cwd != "" {
			c.Given[tree.Join(u.Key, "cwd")] = "--cwd"
		}
	}
	if all == nil {
		return
	}
	if len(c.Upstreams) > 0 {
		r.fail(r.source, "upstreams", "are also given %s on the command line", source)
	}
	c.Upstreams = all
}

// hostOf returns the name of the upstream of a URL: its host, with the port if it has one. It is the
// only upstream, so its tools have no prefix.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return "main" // a later check refuses the URL
	}
	return u.Host
}

// servers returns the upstreams of NAME=COMMAND LINE and NAME=URL.
func (r *reader) servers(given []string) (all []Upstream) {
	for _, s := range given {
		name, what, found := strings.Cut(s, "=")
		key := "--server " + tree.Printable(name)
		words, end, err := commandWords(what, runtime.GOOS == "windows")
		switch {
		case !found || !tree.IsName(name):
			r.fail("--server", "", "must be NAME=COMMAND or NAME=URL, and NAME %s", nameRule)
		case name == ReservedName:
			r.fail(key, "", reserved)
		case slices.ContainsFunc(all, func(u Upstream) bool { return u.Name == name }):
			r.fail(key, "", "is given twice")
		case strings.Contains(what, "://") && len(words) == 1:
			all = append(all, r.remote(name, key, what, nil))
		case err != nil || len(words) == 0:
			r.fail(key, "", "must be a command line, with quotes that are closed")
		case end >= 0: // a shell would end the command there
			r.fail(key, "", "has one of ; & | < > without quotes: it is not run by a shell")
		default:
			all = append(all, r.commandLine(name, key, words))
		}
	}
	return all
}

// commandWords splits a command line as a shell does. end is where a shell would end the command, or
// -1. On Windows a backslash is part of a path and escapes nothing.
func commandWords(line string, windows bool) (words []string, end int, err error) {
	parser := shellwords.NewParser()
	const backslash = "\x00" // a placeholder that no command line contains
	if windows {
		line = strings.ReplaceAll(line, `\`, backslash)
	}
	words, err = parser.Parse(line)
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], backslash, `\`)
	}
	return words, parser.Position, err
}

// commands applies --env, --cwd and --shared to the upstreams of the command line.
func (r *reader) commands(all []Upstream, o Options) {
	var env map[string]string
	for _, e := range o.Env {
		name, text, found := strings.Cut(e, "=")
		if !found || !isEnvName(name) || !isClean(text) {
			r.fail("--env", "", "must be NAME=VALUE")
			return
		}
		if env == nil {
			env = make(map[string]string)
		}
		env[name] = text
	}
	cwd := o.Cwd
	if cwd != "" {
		if abs, err := filepath.Abs(cwd); err == nil {
			cwd = abs
		}
	}
	direct := false
	for i := range all {
		u := &all[i]
		u.Shared = o.Shared
		if u.Command != "" {
			direct = true
			u.Env, u.Cwd = env, cwd
		}
	}
	switch {
	case !direct && len(o.Env) > 0:
		r.fail("--env", "", "is for a command on the command line: a file has env for each upstream")
	case !direct && cwd != "":
		r.fail("--cwd", "", "is for a command on the command line: a file has cwd for each upstream")
	case all == nil && o.Shared:
		r.fail("--shared", "", "is for servers on the command line: a file has session: shared for each upstream")
	}
}

func newUpstream(name, key string) Upstream {
	u := Upstream{Name: name, Key: key}
	setDefaults(reflect.ValueOf(&u).Elem())
	return u
}

// commandLine returns the upstream of a command and its arguments. A path counts from the working
// directory. The upstream gets the whole environment, as in a shell.
func (r *reader) commandLine(name, key string, command []string) Upstream {
	u := newUpstream(name, key)
	u.Command, u.Args = command[0], slices.Clone(command[1:])
	u.InheritEnv = []string{"all"}
	if u.Command == "" {
		r.fail(key, "", "needs a command")
	}
	if isPath(u.Command) {
		if abs, err := filepath.Abs(u.Command); err == nil {
			u.Command = abs
		}
	}
	return u
}

// remote returns the upstream of a URL and its headers.
func (r *reader) remote(name, key, url string, headers []string) Upstream {
	u := newUpstream(name, key)
	u.URL = url
	if !takes("url", url) {
		r.fail(key, "", "must be %s", rules["url"].what)
	}
	for _, h := range headers {
		r.header(&u, h)
	}
	return u
}

// header adds a header, "Name: value". Mistakes do not show the value, which may be a secret.
func (r *reader) header(u *Upstream, given string) {
	name, text, found := strings.Cut(given, ":")
	if name = strings.TrimSpace(name); !found || !headerToken.MatchString(name) {
		r.fail("--header", "", `must be "Name: value"`)
		return
	}
	if why := whySetByUs(name); why != "" {
		r.fail("--header", name, "%s", why)
		return
	}
	for other := range u.Headers {
		if strings.EqualFold(other, name) {
			r.fail("--header", name, "is given twice")
			return
		}
	}
	text, wrong := r.expand(strings.TrimSpace(text))
	for _, w := range wrong {
		r.fail("--header", name, "%s", w)
	}
	if !isHeaderValue(text) {
		r.fail("--header", name, "must be %s", rules["header"].what)
	}
	if u.Headers == nil {
		u.Headers = make(map[string]string)
	}
	u.Headers[name] = text
}

var credential = lazyregexp.New(`(?i)auth|cookie|key|secret|token`)

// Exposed reports whether others can read messages to an upstream on the way.
func (u *Upstream) Exposed() bool { return u.URL != "" && parseEndpoint(u.URL).exposed() }

// cleartext warns about credentials that are sent unencrypted.
func (r *reader) cleartext(u Upstream) {
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
	for _, h := range u.ForwardHeaders {
		if h.Identity || credential.MatchString(h.To) {
			names = append(names, h.To)
		}
	}
	if u.Auth != (UpstreamAuth{}) {
		names = append(names, "Authorization")
	}
	if len(names) > 0 {
		slices.Sort(names)
		r.warn(r.source, u.Key, "sends %s unencrypted to another machine", strings.Join(slices.Compact(names), ", "))
	}
}
