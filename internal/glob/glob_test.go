package glob

import (
	"path"
	"strings"
	"testing"
)

func TestFirst(t *testing.T) {
	for _, c := range []struct {
		globs []string
		text  string
		want  string
		ok    bool
	}{
		{nil, "x", "", false},
		{[]string{"y", "read_*"}, "read_file", "read_*", true},
		{[]string{"*"}, "a/b", "*", true},
		{[]string{"w?"}, "wx", "w?", true},
		{[]string{"repo/*"}, "repo/a/b", "repo/*", true},
		{[]string{"READ"}, "read", "", false},
		{[]string{"["}, "[", "", false},
		{[]string{"https://*/x[?]y"}, "https://h/a/x?y", "https://*/x[?]y", true},
	} {
		if got, ok := First(c.globs, c.text); got != c.want || ok != c.ok {
			t.Errorf("%q in %q: %q %v", c.text, c.globs, got, ok)
		}
	}
}

// The fast way says what path.Match says.
func FuzzMatches(f *testing.F) {
	for _, g := range []string{"", "*", "**", "a*", "*a", "*a*", "a", "*a*b*", "a?", "[a]*", `\**`, `*\*`, `*\`, "a/*", "*/", "*[", "["} {
		for _, text := range []string{"", "a", "ab", "ba", "bab", "a/b", "/", "*", "**", "a*", `\`, "["} {
			f.Add(g, text)
		}
	}
	f.Fuzz(func(t *testing.T, g, text string) {
		if strings.Contains(g+text, "\x00") {
			return // the slash of the slow way
		}
		if want, _ := path.Match(flat(g), flat(text)); matches(g, text) != want {
			t.Errorf("%q, %q: %v", g, text, !want)
		}
	})
}

func TestCheck(t *testing.T) {
	for g, good := range map[string]bool{"": true, "a*": true, "x://*/[a-z]": true, "[": false, "a*[": false, `a\`: false} {
		if (Check(g) == nil) != good {
			t.Errorf("%q", g)
		}
	}
}
