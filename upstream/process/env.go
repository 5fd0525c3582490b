package process

import (
	"slices"
	"strings"
)

// inherited are the variables that every upstream gets from our environment:
// what programs need to find their files, their user's language and the way out
// of the network. A trailing star stands for any rest.
var inherited = append([]string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_*", "TZ", "TMPDIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
	"http_proxy", "https_proxy", "no_proxy", "all_proxy",
}, inheritedHere...)

// inheritAll in InheritEnv stands for every variable.
const inheritAll = "all"

// environ returns the process's environment, given ours.
func (c *Command) environ(ours []string) []string {
	all := slices.Contains(c.InheritEnv, inheritAll)
	env := make([]string, 0, len(ours)+len(c.Env))
	for _, kv := range ours {
		name, _, _ := strings.Cut(kv, "=")
		if all || listed(inherited, name) || listed(c.InheritEnv, name) {
			env = append(env, kv)
		}
	}
	return append(env, c.Env...) // os/exec lets the last one of a name win
}

func listed(names []string, name string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		if prefix, ok := strings.CutSuffix(n, "*"); ok {
			return strings.HasPrefix(name, prefix)
		}
		return sameName(n, name)
	})
}
