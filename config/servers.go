package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// disabled reports whether an entry is off. Nothing else of it is read: the variables
// of such entries are often unset.
func (v value) disabled() bool {
	off, on := false, true
	v.pick("disabled", into(&off, truth.read))
	v.pick("enabled", into(&on, truth.read))
	v.pick("isActive", into(&on, truth.read))
	return off || !on
}

// ignore warns of an unknown key the first time that it is seen.
func (v value) ignore(key string, known fields) {
	if !v.ignored[key] {
		if v.ignored == nil {
			v.ignored = make(map[string]bool)
		}
		v.ignored[key] = true
		v.warn(v.source, v.key, "unknown key, ignored here and in all entries%s", DidYouMean(key, known.keys()))
	}
}

// serverTypes are the names of transports in other programs' files, and ours.
var serverTypes = map[string]string{
	"stdio": "stdio", "local": "stdio",
	"http": "http", "streamable-http": "http", "streamableHttp": "http", "streamable_http": "http", "remote": "http",
	"sse": "sse",
	"ws":  "ws", "websocket": "ws",
}

var serverType = scalar[string]{
	what:  "stdio, http, streamable-http, sse or ws",
	kinds: text,
	parse: func(s string) (string, bool) {
		t, ok := serverTypes[s]
		return t, ok
	},
}

// typeFits checks type against the key that is there, and the scheme of a URL.
func (v value) typeFits(u *Upstream) {
	needs, other := "url", "command"
	if u.Type == "stdio" {
		needs, other = other, needs
	}
	scheme := parseEndpoint(u.URL).scheme
	misfit := u.URL != "" && (u.Type == "ws") != strings.HasPrefix(scheme, "ws")
	swapped := v.node.has(other) && !v.node.has(needs)
	v.pick("type", func(v value) {
		switch {
		case u.Type == "": // a mistake, named already
		case swapped:
			v.wrong("%s goes with %s, not with %s", v.node.describe(), needs, other)
		case misfit && u.Type != "stdio": // with a command too, that is the mistake
			v.wrong("%s does not go with a URL of %s", v.node.describe(), scheme)
		case u.Type == "sse" && u.Era == "modern":
			v.wrong("%s exists in the legacy era only", v.node.describe())
		}
	})
}

// foreignAuth reads auth of mcpServers: ours, or a client that is known beforehand, as
// other programs write it.
func (u *Upstream) foreignAuth(v value) {
	if v.node.has("oauth") || v.node.has("clientCredentials") {
		into(&u.Auth, value.auth)(v)
		return
	}
	u.foreignOAuth(v)
}

// foreignOAuth reads a client as other programs write it under oauth or auth. Scopes
// count, since without them we would ask for more. A secret that is in the file itself is
// ignored, with a warning.
func (u *Upstream) foreignOAuth(v value) {
	if u.Auth != (UpstreamAuth{}) {
		v.wrong("is there twice, as auth and as oauth")
		return
	}
	var o OAuth
	on := true
	switch v.node.kind {
	case boolean:
		into(&on, truth.read)(v)
	case text:
		if v.node.text != "oauth" {
			v.wrong(`must be a map or "oauth": a token goes into headers, as Authorization: "Bearer …"`)
		}
	default:
		known := o.fields()
		known["CLIENT_ID"], known["client_id"] = known["clientId"], known["clientId"]
		known["scope"] = into(&o.Scopes, value.foreignScopes)
		known["scopes"] = into(&o.Scopes, value.foreignScopes)
		known["enabled"] = into(&on, truth.read)
		v.object(known, func(key string, v value) { v.ignore(key, known) })
	}
	if on {
		u.Auth.OAuth = &o
	}
}

// foreignScopes takes one text with spaces too.
func (v value) foreignScopes() ([]string, bool) {
	if v.node.kind != text {
		return v.asked()
	}
	s, ok := str.read(v)
	scopes := strings.Fields(s)
	if ok && slices.ContainsFunc(scopes, func(s string) bool { _, fit := scope.parse(s); return !fit }) {
		v.wrong("must be scopes with spaces between them")
		return nil, false
	}
	return slices.Clip(scopes), ok
}

// name gives every upstream a valid name of its own. Names that need no change come
// first, in the order of the file.
func (l *loader) name(entries []entry) []Upstream {
	taken := make(map[string]bool)
	kept := make([]bool, len(entries))
	keep := func(foreign bool) {
		for i, e := range entries {
			if e.foreign == foreign && !taken[e.Name] && (!foreign || isName(e.Name)) {
				taken[e.Name], kept[i] = true, true
			}
		}
	}
	keep(false)
	keep(true)

	var all []Upstream
	for i, e := range entries {
		u := e.Upstream
		if !kept[i] {
			u.Name = free(fit(u.Name), taken)
			taken[u.Name] = true
			l.warn(l.source, u.Key, "is named %s here", u.Name)
		}
		all = append(all, u)
	}
	return all
}

var (
	unfit       = regexp.MustCompile(`[^A-Za-z0-9_-]+`)
	underscores = regexp.MustCompile(`__+`)
)

const maxName = 32

// fit makes a name of any text: what is not allowed becomes a dash.
func fit(s string) string {
	s = underscores.ReplaceAllString(unfit.ReplaceAllString(s, "-"), "_")
	s = strings.Trim(cut(strings.Trim(s, "-_"), maxName), "-_")
	if s == "" {
		return "server"
	}
	return s
}

// free numbers a name until nobody has it.
func free(name string, taken map[string]bool) string {
	unique := name
	for n := 2; taken[unique]; n++ {
		suffix := fmt.Sprintf("-%d", n)
		unique = cut(name, maxName-len(suffix)) + suffix
	}
	return unique
}

func cut(s string, n int) string { return s[:min(n, len(s))] }
