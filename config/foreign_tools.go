package config

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// A verdict says whether tools may be used that a pattern matches under the names that
// another program gives them.
type verdict struct {
	value                              // where it is
	pattern string                     // in which * matches anything
	prefix  func(server string) string // what comes before the tool's own name
	allowed bool
}

// named is how a program begins the names of a server's tools.
func named(before, after string) func(string) string {
	return func(server string) string { return before + dashless.ReplaceAllString(server, "_") + after }
}

var (
	dashless = regexp.MustCompile(`[^A-Za-z0-9_-]`)

	asOpencode = named("", "_")
	asClaude   = named("mcp__", "__")
	asGemini   = []func(string) string{named("mcp_", "_"), named("", "__")}
	asZed      = func(server string) string { return "mcp:" + server + ":" }
)

// judge adds a verdict.
func (f *foreign) judge(v value, pattern string, prefix func(string) string, allowed bool) {
	f.verdicts = append(f.verdicts, verdict{v, pattern, prefix, allowed})
}

// deny adds to the tools of a server that are denied what the rest of the file says.
func (f *foreign) deny(name string, u *Upstream) {
	for _, tool := range f.denied {
		u.Tools.Deny = append(u.Tools.Deny, literal(tool))
	}
	u.obey(f.verdicts, name)
	u.obey(f.profile, name)
}

// obey adds to the tools that are denied what verdicts say. The last that is about all tools
// counts, and what comes after it.
func (u *Upstream) obey(verdicts []verdict, name string) {
	var only []string    // but for these all are denied
	var closing *verdict // by this; nil: they are not
	for _, d := range verdicts {
		for _, rest := range d.rests(name) {
			switch {
			case !isGlob(rest):
				d.wrong("is no pattern that can be read here")
			case !d.allowed && rest == "*":
				closing, only = &d, nil
			case !d.allowed:
				u.Tools.Deny = append(u.Tools.Deny, rest)
			case closing != nil && d.pattern != "*":
				only = append(only, rest)
			}
		}
	}
	switch {
	case closing != nil && len(only) > 0 && len(u.Tools.Allow) == 0:
		u.Tools.Allow = only
	case closing != nil:
		u.Tools.Deny = append(u.Tools.Deny, "*")
		closing.warn(closing.source, closing.key, "denies all tools of %s", printable(name))
	}
}

// rests are what a verdict says of the tools of a server, as globs on their own names.
func (d verdict) rests(server string) []string {
	prefix := d.prefix(server)
	if strings.HasPrefix(prefix, "mcp__") && d.pattern+"__" == prefix { // the server alone
		return []string{"*"}
	}
	return restsOf(d.pattern, prefix)
}

// restsOf returns what is left of a pattern when it has matched prefix, in every way in
// which it can.
func restsOf(pattern, prefix string) (rests []string) {
	flat := strings.NewReplacer("/", "\x00") // names are no paths
	begins, prefix := flat.Replace(pattern), flat.Replace(prefix)
	for i := range len(pattern) + 1 {
		if ok, err := path.Match(begins[:i], prefix); !ok || err != nil {
			continue
		}
		rest := pattern[i:]
		if i > 0 && pattern[i-1] == '*' {
			rest = "*" + rest
		}
		if rest != "" && !slices.Contains(rests, rest) {
			rests = append(rests, rest)
		}
	}
	return rests
}

var special = regexp.MustCompile(`[*?\\[\]\\\\]`)

// literal is the glob that matches a name alone.
func literal(name string) string { return special.ReplaceAllString(name, `\$0`) }

// denyNames reads names of tools that must not be used.
func (u *Upstream) denyNames(v value) {
	names, _ := nonEmpty.list(v)
	for _, n := range names {
		u.Tools.Deny = append(u.Tools.Deny, literal(n))
	}
}

// allowNames reads names of the only tools that may be used. None at all would mean "all"
// here, and "none" there.
func (u *Upstream) allowNames(v value) {
	if v.node.kind == null || v.node.kind == list && len(v.node.items) == 0 {
		v.wrong("is empty: leave it out to allow all tools, or disable the server")
		return
	}
	names, _ := nonEmpty.list(v)
	for _, n := range names {
		n, _, _ = strings.Cut(n, "(") // arguments, which Gemini CLI does not look at
		u.Tools.Allow = append(u.Tools.Allow, literal(n))
	}
}

// foreignTools takes besides ours a plain list of globs, and a map of tools that may be
// off; other programs have both.
func (u *Upstream) foreignTools(v value) {
	switch {
	case v.node.kind == list:
		allow, _ := glob.some(v)
		u.Tools.Allow = append(u.Tools.Allow, allow...)
	case v.node.has("allow") || v.node.has("deny"):
		t, _ := v.tools()
		u.Tools.Allow, u.Tools.Deny = append(u.Tools.Allow, t.Allow...), append(u.Tools.Deny, t.Deny...)
	default:
		v.each(func(name string, v value) {
			on := true
			if v.node.kind == object {
				on = !v.disabled()
			} else {
				into(&on, truth.read)(v)
			}
			if !on {
				u.Tools.Deny = append(u.Tools.Deny, literal(name))
			}
		})
	}
}

// toolFilter reads what TBXark/mcp-proxy calls so.
func (u *Upstream) toolFilter(v value) {
	mode := "allow"
	v.strict(fields{
		"mode": into(&mode, filter.read),
		"list": func(value) {},
	})
	read := u.allowNames
	if mode == "block" {
		read = u.denyNames
	}
	v.pick("list", read)
}
