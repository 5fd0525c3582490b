package session

import "testing"

func TestAllows(t *testing.T) {
	for _, c := range []struct {
		allow, deny []string
		tool        string
		want        bool
	}{
		{nil, nil, "x", true},
		{[]string{"read_*"}, nil, "read_file", true},
		{[]string{"read_*"}, nil, "write_file", false},
		{nil, []string{"*"}, "a/b", false},
		{[]string{"*"}, []string{"w?"}, "wx", false},
		{[]string{"repo/*"}, nil, "repo/a/b", true},
		{[]string{"READ"}, nil, "read", false},
	} {
		u := Upstream{Allow: c.allow, Deny: c.deny}
		if got := u.allows(c.tool); got != c.want {
			t.Errorf("allow %q, deny %q: %q is %v", c.allow, c.deny, c.tool, got)
		}
	}
}
