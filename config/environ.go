package config

import (
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
)

// inherited is what every upstream's process gets of the proxy's environment:
// what programs need to run at all, and nothing that may be a secret of others.
var inherited = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_*", "TZ", "TMPDIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY",
	"http_proxy", "https_proxy", "no_proxy", "all_proxy",
}

// inheritedWindows is what programs need there besides.
var inheritedWindows = []string{
	"SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC", "PATHEXT", "WINDIR", "TEMP", "TMP",
	"USERNAME", "USERPROFILE", "HOMEDRIVE", "HOMEPATH", "APPDATA", "LOCALAPPDATA",
	"PROGRAMDATA", "PROGRAMFILES", "PROGRAMFILES(X86)", "PROCESSOR_ARCHITECTURE",
}

// Environ is the environment of the upstream's process, as NAME=value sorted by
// name: the usual variables of parent (nil: os.Environ), those of InheritEnv,
// and Env, which wins.
func (u Upstream) Environ(parent []string) []string {
	if parent == nil {
		parent = os.Environ()
	}
	env := make(map[string]string)
	for _, pair := range parent {
		// Windows keeps working directories in variables that begin with "=".
		if name, val, ok := strings.Cut(pair, "="); ok && name != "" && u.inherits(name) {
			env[name] = val
		}
	}
	maps.Copy(env, u.Env)
	all := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all = append(all, name+"="+env[name])
	}
	return all
}

func (u Upstream) inherits(name string) bool {
	if slices.Contains(u.InheritEnv, "all") {
		return true
	}
	match := func(pattern string) bool { return matchName(pattern, name) }
	return slices.ContainsFunc(inherited, match) ||
		slices.ContainsFunc(u.InheritEnv, match) ||
		runtime.GOOS == "windows" && slices.ContainsFunc(inheritedWindows, match)
}

// matchName compares names as the system does; a final * matches any rest.
func matchName(pattern, name string) bool {
	if runtime.GOOS == "windows" {
		pattern, name = strings.ToUpper(pattern), strings.ToUpper(name)
	}
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(name, prefix)
	}
	return pattern == name
}
