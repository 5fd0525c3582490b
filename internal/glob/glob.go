// Package glob matches names and URIs against the globs of configurations: * matches any text, ? one character, [a-z]
// one of several, and \ escapes the next character.
package glob

import (
	"path"
	"strings"
)

// First returns the first glob that matches a text, and whether there is one. An invalid glob matches nothing, see
// [Check].
func First(globs []string, text string) (glob string, ok bool) {
	for _, g := range globs {
		if matches(g, text) {
			return g, true
		}
	}
	return "", false
}

// matches does what path.Match does, ten times as fast for the most common globs: a*, *a*, a.
func matches(glob, text string) bool {
	if !mayBegin(glob, text) {
		return false
	}
	inner, begins := strings.CutPrefix(glob, "*")
	inner, ends := strings.CutSuffix(inner, "*")
	switch {
	case strings.ContainsAny(inner, special):
		ok, _ := path.Match(flat(glob), flat(text))
		return ok
	case begins && ends, glob == "*":
		return strings.Contains(text, inner)
	case begins:
		return strings.HasSuffix(text, inner)
	case ends:
		return strings.HasPrefix(text, inner)
	}
	return text == inner
}

// mayBegin reports whether a text begins as a glob does, up to the first special character. Most globs of a long list
// do not match, and need no other look.
func mayBegin(glob, text string) bool {
	for i := range len(glob) {
		switch c := glob[i]; {
		case c == '*' || c == '?' || c == '[' || c == '\\':
			return true
		case i == len(text) || text[i] != c:
			return false
		}
	}
	return true
}

const special = `*?[\`

// Check returns what is wrong with a glob, nil if it is valid.
func Check(glob string) error {
	_, err := path.Match(flat(glob), "")
	return err
}

// flat hides slashes from path.Match: tool names and URIs are not paths, and * in a denying rule must match
// slashes too.
func flat(s string) string { return strings.ReplaceAll(s, "/", "\x00") }
