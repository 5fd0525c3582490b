// Package lazyregexp has regular expressions that are compiled when they are first used. A run uses few of those
// that check a configuration. Compiled at the start, all of them were a fifth of the live memory of an idle proxy.
package lazyregexp

import (
	"os"
	"regexp"
	"strings"
	"sync"
)

// A Regexp is like a [regexp.Regexp].
type Regexp struct{ compiled func() *regexp.Regexp }

// New returns the regular expression of text. It panics if text is none, in tests at once.
func New(text string) Regexp {
	r := Regexp{sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })}
	if len(os.Args) > 0 && strings.HasSuffix(strings.TrimSuffix(os.Args[0], ".exe"), ".test") {
		r.compiled()
	}
	return r
}

func (r Regexp) MatchString(s string) bool            { return r.compiled().MatchString(s) }
func (r Regexp) FindIndex(b []byte) []int             { return r.compiled().FindIndex(b) }
func (r Regexp) FindStringSubmatch(s string) []string { return r.compiled().FindStringSubmatch(s) }
func (r Regexp) ReplaceAllString(s, with string) string {
	return r.compiled().ReplaceAllString(s, with)
}
