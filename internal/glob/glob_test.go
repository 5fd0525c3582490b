package glob

import "testing"

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

func TestCheck(t *testing.T) {
	for g, good := range map[string]bool{"": true, "a*": true, "x://*/[a-z]": true, "[": false, "a*[": false, `a\`: false} {
		if (Check(g) == nil) != good {
			t.Errorf("%q", g)
		}
	}
}
