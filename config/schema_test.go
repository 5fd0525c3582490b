package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// pages are the tables of docs/configuration.md, each with the struct of its keys, or nil for the
// top-level keys that name the table.
var pages = map[string]reflect.Type{
	"servers": nil, "addresses": nil, "clients": nil, "limits": nil, "replicas": nil, "operators": nil,
	"upstreams.NAME":      reflect.TypeFor[Upstream](),
	"upstreams.NAME.auth": reflect.TypeFor[UpstreamAuth](),
	"links.NAME":          reflect.TypeFor[Link](),
	"auth.tokens[]":       reflect.TypeFor[NamedToken](),
	"auth.jwt[]":          reflect.TypeFor[Issuer](),
	"policies[]":          reflect.TypeFor[Policy](),
}

// rows returns the keys of a struct in Markdown, a line each. The line of a key includes the keys
// below it that have no text of their own.
func rows(t *testing.T, at string, fields []field) (lines string) {
	t.Helper()
	for _, f := range fields {
		if f.has("foreign") {
			continue
		}
		key, struck := tree.Join(at, f.key), scalarOf(f.typ)
		under := ""
		if struck.Kind() == reflect.Struct && !slices.Contains(slices.Collect(maps.Values(pages)), struck) {
			if below := fieldsOf(struck); below[0].has("doc") {
				under = rows(t, key, below)
			} else {
				names := make([]string, len(below))
				for i, b := range below {
					names[i] = key + "." + b.key
				}
				key = strings.Join(names, "`, `")
			}
		}
		if !f.has("doc") && under == "" {
			t.Errorf("%s has no text", key)
		}
		if f.has("doc") {
			lines += fmt.Sprintf("| `%s` | %s | %s |\n", key, code(f.shown()), code(f.tag.Get("doc")))
		}
		lines += under
	}
	return lines
}

// top returns the top-level keys of a table.
func top(table string) (all []field) {
	for _, f := range fieldsOf(reflect.TypeFor[Config]()) {
		if f.tag.Get("table") == table {
			all = append(all, f)
		}
	}
	return all
}

// TestTables: each top-level key is in a table that exists, and all defaults are values of their
// keys.
func TestTables(t *testing.T) {
	for _, of := range pages {
		if of != nil {
			setDefaults(reflect.New(of).Elem())
		}
	}
	for _, f := range fieldsOf(reflect.TypeFor[Config]()) {
		if of, ok := pages[f.tag.Get("table")]; !ok || of != nil {
			t.Errorf("%s is in no table", f.key)
		}
	}
}

// validator returns a function that checks files against the schema.
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
		root, _, err := tree.Parse(strings.TrimPrefix(filepath.Ext(file), "."), data)
		if err != nil {
			t.Fatal(file, err)
		}
		return rules.Validate(plain(root))
	}
}

// plain returns n as encoding/json would decode it.
func plain(n *tree.Node) any {
	switch n.Kind {
	case tree.Null:
		return nil
	case tree.Boolean:
		return n.Text == "true"
	case tree.Number:
		f, _ := json.Number(n.Text).Float64()
		return f
	case tree.Text:
		return n.Text
	case tree.List:
		all := []any{}
		for _, item := range n.Items {
			all = append(all, plain(item))
		}
		return all
	}
	all := make(map[string]any)
	for _, m := range n.Members {
		all[m.Key] = plain(m.Value)
	}
	return all
}

// TestSchema: files that can be loaded match the schema, and unknown keys do not.
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

// TestDocuments: docs has the current schema, and the current tables of the reference.
func TestDocuments(t *testing.T) {
	golden(t, "../docs/mcp-proxy.schema.json", string(Schema()))
	const page = "../docs/configuration.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		begin, end := fmt.Sprintf("<!-- keys: %s -->\n", name), "<!-- end of keys -->\n"
		before, rest, found := strings.Cut(want, begin)
		_, after, closed := strings.Cut(rest, end)
		if !found || !closed {
			t.Fatalf("%s has no place %q", page, begin)
		}
		fields := top(name)
		if of := pages[name]; of != nil {
			fields = fieldsOf(of)
		}
		want = before + begin + "| key | default | what it is |\n|---|---|---|\n" + rows(t, "", fields) + end + after
	}
	golden(t, page, want)
}
