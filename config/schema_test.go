package config

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

// paths are those of all keys below s that take a scalar, or a list or a map of them.
func (s *shape) paths(at string) (all []string) {
	if len(s.takes) > 0 {
		all = append(all, strings.TrimSuffix(strings.TrimSuffix(at, "[]"), "."+anyName))
	}
	if s.items != nil {
		all = append(all, s.items.paths(at+"[]")...)
	}
	for name, m := range s.members {
		all = append(all, m.paths(join(at, name))...)
	}
	return all
}

// TestReference: each key that is read is in the reference, and no other.
func TestReference(t *testing.T) {
	read := allKeys().root
	for _, path := range read.paths("") {
		if described(strings.TrimSuffix(path, "."+anyName)) == "" {
			t.Errorf("%s is read, and not in the reference", path)
		}
	}
	for _, g := range reference {
		for _, a := range g.keys {
			for _, key := range a.keys {
				if !read.has(under(g.at, key)) {
					t.Errorf("%s is in the reference, and nobody reads it", under(g.at, key))
				}
			}
		}
	}
}

// has reports whether there is a key at a path of the reference.
func (s *shape) has(path string) bool {
	for path != "" {
		name, rest, _ := strings.Cut(path, ".")
		bare, list := strings.CutSuffix(name, "[]")
		if s = s.members[bare]; s == nil {
			return false
		}
		if list {
			s = s.items
		}
		path = rest
	}
	return true
}

// validator returns what checks files against the schema.
func validator(t *testing.T) func(file string) error {
	t.Helper()
	var schema jsonschema.Schema
	if err := json.Unmarshal(Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	rules, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return func(file string) error {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		root, err := parse(strings.TrimPrefix(filepath.Ext(file), "."), data)
		if err != nil {
			t.Fatal(file, err)
		}
		return rules.Validate(root.plain())
	}
}

// plain is n as other programs see it.
func (n *node) plain() any {
	switch n.kind {
	case null:
		return nil
	case boolean:
		return n.text == "true"
	case number:
		f, _ := json.Number(n.text).Float64()
		return f
	case text:
		return n.text
	case list:
		all := []any{}
		for _, item := range n.items {
			all = append(all, item.plain())
		}
		return all
	}
	all := make(map[string]any)
	for _, m := range n.members {
		all[m.key] = m.value.plain()
	}
	return all
}

// TestSchema: what can be loaded obeys the schema, and unknown keys do not.
func TestSchema(t *testing.T) {
	check := validator(t)
	good := files(t, "load")
	for _, pattern := range []string{"../examples/*.yaml", "../examples/*/*.yaml", "../examples/kubernetes/*/*.yaml"} {
		found, _ := filepath.Glob(pattern)
		good = append(good, found...)
	}
	for _, file := range good {
		if text, _ := os.ReadFile(file); filepath.Base(file) == "compose.yaml" || strings.Contains(string(text), "apiVersion:") {
			continue // for Docker, or Kubernetes
		}
		if err := check(file); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	for _, name := range []string{"slips.yaml", "dozen.json"} {
		if err := check(filepath.Join("testdata/mistakes", name)); err == nil {
			t.Errorf("%s obeys the schema", name)
		}
	}
}

// TestDocuments: docs has the schema, and the tables of the reference.
func TestDocuments(t *testing.T) {
	golden(t, "../docs/mcp-proxy.schema.json", string(Schema()))
	const page = "../docs/configuration.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for _, g := range reference {
		begin, end := fmt.Sprintf("<!-- keys: %s -->\n", cmp.Or(g.at, g.keys[0].keys[0]+" …")), "<!-- end of keys -->\n"
		before, rest, found := strings.Cut(want, begin)
		_, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("%s has no place %q", page, begin)
		}
		want = before + begin + g.table() + end + after
	}
	golden(t, page, want)
}

// table is the keys of a group in Markdown.
func (g group) table() string {
	var b strings.Builder
	b.WriteString("| key | default | what it is |\n|---|---|---|\n")
	for _, a := range g.keys {
		keys := "`" + strings.Join(a.keys, "`, `") + "`"
		fmt.Fprintf(&b, "| %s | %s | %s |\n", keys, a.standard, a.text)
	}
	return b.String()
}
