package catalog

import (
	"encoding/json"
	"strings"
	"testing"
)

// indexed returns the table of a list that the client may see completely.
func indexed(t *testing.T, k Kind, elements ...string) *Table {
	t.Helper()
	var raw []json.RawMessage
	for _, e := range elements {
		raw = append(raw, json.RawMessage(e))
	}
	table, unusable := Index(k, raw, func(string) bool { return true })
	if unusable != nil {
		t.Fatal(unusable)
	}
	return table
}

func TestOwner(t *testing.T) {
	long := strings.Repeat("a", 60)
	files := Offer{"files__", indexed(t, Tools, `{"name":"read"}`, `{"name":"both"}`, `{"name":"`+long+`"}`)}
	docs := Offer{"docs__", indexed(t, Tools, `{"name":"both"}`, `{"name":"files__read"}`)}
	silent := Offer{"silent__", nil}
	for _, tt := range []struct {
		offers   []Offer
		name     string
		owner    int
		original string
	}{
		{[]Offer{files, docs}, "files__read", 0, "read"},
		{[]Offer{docs, files}, "files__read", 1, "read"}, // an exposed name before a bare one
		{[]Offer{files, docs}, "docs__files__read", 1, "files__read"},
		{[]Offer{files, docs}, Exposed("files__", long), 0, long},
		{[]Offer{files, docs}, "read", 0, "read"},
		{[]Offer{files, docs}, "both", -1, "both"}, // two have it
		{[]Offer{files, docs}, "none", -1, "none"},
		{[]Offer{files, silent}, "read", -1, ""}, // the other may have it, too
		{[]Offer{files, silent}, "files__read", 0, "read"},
		{nil, "read", -1, "read"},
	} {
		if owner, original := Owner(tt.offers, tt.name, nil); owner != tt.owner || original != tt.original {
			t.Errorf("%s of %d: %d %q, want %d %q", tt.name, len(tt.offers), owner, original, tt.owner, tt.original)
		}
	}
}

func TestOwnerOfURI(t *testing.T) {
	resources := []Offer{{"", indexed(t, Resources, `{"uri":"x:a"}`)}, {"", nil}, {"", indexed(t, Resources, `{"uri":"x:a"}`, `{"uri":"t:1"}`)}}
	templates := []Offer{{"", indexed(t, Templates, `{"uriTemplate":"t:{n}"}`)}, {"", indexed(t, Templates, `{"uriTemplate":"u:{n}"}`)}, {"", nil}}
	for uri, want := range map[string]int{"x:a": 0, "t:1": 2, "t:2": 0, "u:{n}": 1, "u:2": 1, "v:": -1} {
		if got := OwnerOfURI(resources, templates, uri); got != want {
			t.Errorf("%s: %d, want %d", uri, got, want)
		}
	}
}

func TestFormer(t *testing.T) {
	table := indexed(t, Tools, `{"name":"read"}`, `{"name":"a__b"}`, `{"name":"b"}`)
	for name, want := range map[string]string{"a__read": "read", "a__b": "a__b", "a__none": "a__none", "read": "read"} {
		if got := table.Former("a", name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if got := (*Table)(nil).Former("a", "a__read"); got != "a__read" {
		t.Error("of no table:", got)
	}
}

func TestMerge(t *testing.T) {
	a := indexed(t, Tools, `{"name":"x","n":1}`, `{"name":"y"}`)
	b := indexed(t, Tools, `{"name":"x","n":2}`)
	l, clashes := Merge([]Listing{{Entries: a.Entries}, {Entries: b.Entries}, {Prefix: "b__", Entries: b.Entries}})
	if len(clashes) != 1 || clashes[0] != "x" {
		t.Error("clashes:", clashes)
	}
	if got := string(l.Result(Tools)); got != `{"tools":[{"name":"x","n":1},{"name":"y"},{"name":"b__x","n":2}]}` {
		t.Error(got)
	}
}

// A name with the prefix of an upstream belongs to no other upstream, whatever others list, and
// whether that one has listed or not.
func TestNoOtherPrefix(t *testing.T) {
	list := func(names ...string) *Table {
		var elements []json.RawMessage
		for _, name := range names {
			elements = append(elements, json.RawMessage(`{"name":"`+name+`"}`))
		}
		t, _ := Index(Tools, elements, func(string) bool { return true })
		return t
	}
	for _, tt := range []struct {
		files *Table
		owner int
	}{{list("read"), 2}, {list(), -1}, {nil, -1}} {
		offers := []Offer{{"", list("files__read")}, {"evil__", list("files__read")}, {"files__", tt.files}}
		if owner, _ := Owner(offers, "files__read", nil); owner != tt.owner {
			t.Errorf("the call goes to %d, want %d", owner, tt.owner)
		}
		if owner := BareOwner(offers[1:], "files__read", nil); owner != -1 {
			t.Errorf("as a bare name it goes to %d", owner)
		}
	}
	if owner, _ := Owner([]Offer{{"files__", list("files__read")}, {"b__", list()}}, "files__read", nil); owner != 0 {
		t.Error("an upstream's own name does not do for it:", owner)
	}
}
