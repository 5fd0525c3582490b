package config

import (
	"path"
	"regexp"
	"slices"
)

// readTools reads what keeps tools of any server from being used: opencode's verdicts, or
// Gemini CLI's list of names.
func (f *foreign) readTools(v value) {
	if f.section.key == "mcpServers" {
		v.pick("exclude", into(&f.denied, nonEmpty.list))
		return
	}
	v.each(func(pattern string, v value) {
		on := true
		if v.node.kind == boolean {
			into(&on, truth.read)(v)
		}
		f.judge(v, pattern, on)
	})
}

// readPermissions reads opencode's permissions. To ask the person first is the client's
// business.
func (f *foreign) readPermissions(v value) {
	if v.node.kind != object {
		return
	}
	v.each(func(pattern string, v value) { f.judge(v, pattern, v.node.text != "deny") })
}

func (f *foreign) judge(v value, pattern string, allowed bool) {
	if !allowed {
		f.verdicts = append(f.verdicts, verdict{v, pattern})
	}
}

// deny adds to the tools of a server that are denied what the rest of the file says.
func (f *foreign) deny(name string, u *Upstream) {
	for _, tool := range f.denied {
		u.Tools.Deny = append(u.Tools.Deny, literal(tool))
	}
	prefix := unfit.ReplaceAllString(name, "_") + "_"
	for _, d := range f.verdicts {
		for _, rest := range restsOf(d.pattern, prefix) {
			if !isGlob(rest) {
				d.wrong("is no pattern that can be read here")
				break
			}
			u.Tools.Deny = append(u.Tools.Deny, rest)
		}
	}
}

// restsOf returns what is left of a pattern when it has matched prefix, in every way in
// which it can.
func restsOf(pattern, prefix string) (rests []string) {
	for i := range len(pattern) + 1 {
		if ok, err := path.Match(pattern[:i], prefix); !ok || err != nil {
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
		u.Tools.Allow = append(u.Tools.Allow, literal(n))
	}
}

// foreignTools takes besides ours a plain list of globs, and a map of tools that may be
// off; other programs have both.
func (u *Upstream) foreignTools(v value) {
	switch {
	case v.node.kind == list:
		allow, _ := glob.list(v)
		u.Tools.Allow = append(u.Tools.Allow, allow...)
	case v.node.has("allow") || v.node.has("deny"):
		t, _ := v.tools()
		u.Tools.Allow, u.Tools.Deny = append(u.Tools.Allow, t.Allow...), append(u.Tools.Deny, t.Deny...)
	default:
		v.each(func(name string, v value) {
			if v.node.kind == object && v.disabled() {
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
