package config

import (
	"maps"
	"slices"
	"strings"
)

func (l *loader) readUpstreams(v value) {
	v.each(func(name string, v value) {
		if !isName(name) {
			v.wrong("is not %s", nameRule)
		}
		u := newUpstream(name, v)
		known := u.fields()
		v.strict(known)
		if v.slip(known) == "" { // or that is the mistake
			v.transport(value.wrong)
		}
		v.sharedOnly(u.Shared, value.wrong)
		v.oneCredential()
		l.entries = append(l.entries, entry{Upstream: *u})
	})
}

func newUpstream(name string, v value) *Upstream {
	u := defaultUpstream()
	u.Name, u.Key = name, v.key
	return &u
}

// fields are the keys of an upstream.
func (u *Upstream) fields() fields {
	return fields{
		"command":    into(&u.Command, value.command),
		"args":       into(&u.Args, loose.list),
		"env":        into(&u.Env, loose.mapped(envName.what, isEnvName)),
		"inheritEnv": into(&u.InheritEnv, envName.list),
		"cwd":        into(&u.Cwd, value.path),

		"url":           into(&u.URL, httpURL.read),
		"headers":       into(&u.Headers, value.headers),
		"headersFrom":   into(&u.HeadersFrom, value.headersFrom),
		"tls":           into(&u.TLS, value.tls),
		"auth":          into(&u.Auth, value.auth),
		"maxConcurrent": into(&u.MaxConcurrent, count.read),

		"replay": into(&u.Replay, value.filePath),

		"era":            into(&u.Era, value.era),
		"session":        into(&u.Shared, value.shared),
		"roots":          into(&u.Roots, rootURI.list),
		"required":       into(&u.Required, truth.read),
		"startTimeout":   into(&u.StartTimeout, duration1.read),
		"requestTimeout": into(&u.RequestTimeout, duration.read),
		"writeTimeout":   into(&u.WriteTimeout, duration1.read),
		"stopGrace":      into(&u.StopGrace, duration1.read),
		"prefix":         into(&u.Prefix, value.prefix),
		"tools":          into(&u.Tools, value.tools),
	}
}

// transports are the keys that say what an upstream is, each with those that have a
// meaning only beside it.
var transports = []struct {
	key    string
	beside []string
}{
	{"command", []string{"args", "env", "inheritEnv", "cwd"}},
	{"url", []string{"headers", "headersFrom", "tls", "auth", "maxConcurrent"}},
	{"replay", nil},
}

// transport checks that an upstream is one thing, and that its keys are of the one kind;
// misplaced gets those that are not.
func (v value) transport(misplaced func(v value, format string, args ...any)) {
	var is []string
	for _, t := range transports {
		if v.node.has(t.key) {
			is = append(is, t.key)
		}
	}
	switch {
	case len(is) > 1:
		v.wrong("has both %s", strings.Join(is, " and "))
		return
	case len(is) == 0:
		if v.node.kind&(null|object) != 0 { // anything else has been named already
			v.wrong("needs command or url")
		}
		return
	}
	v.each(func(key string, v value) {
		for _, t := range transports {
			if t.key != is[0] && slices.Contains(t.beside, key) {
				misplaced(v, "has a meaning only beside %s", t.key)
			}
		}
	})
}

// slip returns the unknown key that must be a misspelt command, url or replay, since none
// of them is there; "" if there is none.
func (v value) slip(known fields) string {
	names := make(map[string]bool)
	for _, t := range transports {
		if v.node.has(t.key) {
			return ""
		}
		names[t.key] = true
	}
	for _, m := range v.node.members {
		if _, ok := known[m.key]; !ok && names[Nearest(m.key, known.keys())] {
			return m.key
		}
	}
	return ""
}

// sharedOnly checks that only a shared upstream has roots of its own: any other
// has those of its client.
func (v value) sharedOnly(shared bool, misplaced func(v value, format string, args ...any)) {
	if !shared {
		v.pick("roots", func(v value) { misplaced(v, "has a meaning only beside session: shared") })
	}
}

// command is a name to look up in PATH, or with a slash a path, which counts
// from the file's directory.
func (v value) command() (string, bool) {
	s, ok := nonEmpty.read(v)
	if ok && isPath(s) {
		s = v.resolve(s)
	}
	return s, ok
}

func (v value) headers() (map[string]string, bool) {
	all, ok := header.mapped("the name of a header", headerToken.MatchString)(v)
	v.duplicateHeaders(all)
	return all, ok
}

func (v value) headersFrom() (map[string]string, bool) {
	all, ok := nonEmpty.mapped("the name of a header", headerToken.MatchString)(v)
	v.duplicateHeaders(all)
	for name, file := range all {
		all[name] = v.resolve(file)
	}
	return all, ok
}

// duplicateHeaders refuses names of headers that only case tells apart: one of them would
// be lost on the way.
func (v value) duplicateHeaders(all map[string]string) {
	seen := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		lower := strings.ToLower(name)
		if first, ok := seen[lower]; ok {
			v.fail(v.source, join(v.key, name), "is the same header as %s", first)
		}
		seen[lower] = name
	}
}

func (v value) tls() (t TLS, ok bool) {
	v.strict(fields{
		"ca":   into(&t.CA, value.path),
		"cert": into(&t.Cert, value.path),
		"key":  into(&t.Key, value.path),
	})
	if (t.Cert == "") != (t.Key == "") {
		v.wrong("cert and key come together")
	}
	return t, true
}

func (v value) era() (string, bool) {
	s, ok := eraMode.read(v)
	if s == "auto" {
		s = ""
	}
	return s, ok
}

func (v value) shared() (bool, bool) {
	s, ok := session.read(v)
	return s == "shared", ok
}

func (v value) prefix() (*string, bool) {
	s, ok := prefixText.read(v)
	return &s, ok
}

func (v value) tools() (t Tools, ok bool) {
	v.strict(fields{
		"allow": into(&t.Allow, glob.list),
		"deny":  into(&t.Deny, glob.list),
	})
	return t, true
}
