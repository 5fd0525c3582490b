// Package glob matches names and URIs against the globs of configurations: * is any text, ?
// one character, [a-z] one of several, and \ takes the next one literally.
package glob

import (
	"path"
	"strings"
)

// First returns the first of the globs that matches a text, and whether there is one. A
// glob that is none matches nothing, see [Check].
func First(globs []string, text string) (glob string, ok bool) {
	if len(globs) == 0 {
		return "", false
	}
	text = flat(text)
	for _, g := range globs {
		if ok, _ := path.Match(flat(g), text); ok {
			return g, true
		}
	}
	return "", false
}

// Check returns what is wrong with a glob; nil if it is one.
func Check(glob string) error {
	_, err := path.Match(flat(glob), "")
	return err
}

// flat hides slashes from path.Match: names of tools and URIs are not paths, and a * in a
// rule that denies must match all of them.
func flat(s string) string { return strings.ReplaceAll(s, "/", "\x00") }
