package catalog

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

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
		if got := Allows(c.allow, c.deny, c.tool); got != c.want {
			t.Errorf("allow %q, deny %q: %q is %v", c.allow, c.deny, c.tool, got)
		}
	}
}

func FuzzMatcher(f *testing.F) {
	f.Add("x://{a}/{+b*}{?c,d:3}{&e*}{#f}{/g}{.h}", "x://a/b?c=1")
	f.Add("{a:9999,b:9999}", strings.Repeat("x", 5000)) // takes minutes in other ways
	f.Add("{"+strings.Repeat("a,", 498)+"a}", "a")
	f.Add("{a*}{b*}{c*}{d*}{e*}{f*}{g*}{h*}", strings.Repeat("a,", 4096))
	f.Fuzz(func(t *testing.T, template, uri string) {
		began := time.Now()
		if re := matcher(template); re != nil {
			(&Table{templates: []*regexp.Regexp{re}}).covers(uri)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Error("took", d)
		}
	})
}

func TestExposedNames(t *testing.T) {
	long := strings.Repeat("a", 60)
	names := []string{Exposed("files__", long), Exposed("files__", long+"b"), Exposed("docs__", long)}
	for i, n := range names {
		if len(n) != maxName || !fitName.MatchString(n) || slices.Index(names, n) != i {
			t.Error(n)
		}
	}
	for _, as := range []string{"x", "ü", "a.b/" + long, ""} {
		if n := Exposed("files__", as); n != "files__"+as {
			t.Error(n)
		}
	}
}

// mirrored is a tool with parameters that headers repeat.
const mirrored = `{"name":%q,"inputSchema":{"type":"object","properties":{
	"region":{"type":"string","x-mcp-header":"Region"},
	"deep":{"type":"object","properties":{"n":{"type":"integer","x-mcp-header":"N"}}}}}}`

// Schemas of an upstream cannot fill the memory.
func TestMirrorsAreBounded(t *testing.T) {
	var table Table
	long := strings.Repeat("n", 1000)
	for i := range 3000 {
		table.addMirrors(fmt.Sprint(i, long), json.RawMessage(fmt.Sprintf(mirrored, long)))
	}
	if n := len(table.mirrors); table.mirrorBytes > maxMirrors || n < 100 || n > 1000 {
		t.Errorf("%d tools, %d bytes", n, table.mirrorBytes)
	}
}
