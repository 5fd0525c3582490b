package glob

import (
	"fmt"
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

// BenchmarkFirst asks a list of globs for a name that the last one matches.
func BenchmarkFirst(b *testing.B) {
	for _, shape := range []string{"files__t%d", "files__t%d*", "files__t%d[0-9]", "server%d__*"} {
		b.Run(shape, func(b *testing.B) {
			var globs []string
			for i := range 500 {
				globs = append(globs, fmt.Sprintf(shape, i))
			}
			globs = append(globs, "files__write")
			for b.Loop() {
				if _, ok := First(globs, "files__write"); !ok {
					b.Fatal("no match")
				}
			}
		})
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
