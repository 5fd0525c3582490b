package lists

import (
	"encoding/json"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A name with the form of a prefix leads to the upstream that lists it only if there are no others: one that is not known
// yet could have the prefix, and sessions wait for it.
func TestResolveBareNames(t *testing.T) {
	table, _ := catalog.Index(catalog.Tools, []json.RawMessage{[]byte(`{"name":"db__query"}`), []byte(`{"name":"now"}`)}, func(string) bool { return true })
	all := func(string) bool { return true }
	upstreams := []Named{{Name: "a", Prefix: "a__", Allows: all}, {Name: "b", Prefix: "b__", Allows: all}}
	for _, lists := range []map[tableKey]*catalog.Table{
		{{upstream: "a", kind: catalog.Tools}: table},
		{{upstream: "a", kind: catalog.Tools}: table, {upstream: "b", kind: catalog.Tools}: Absent().Table},
	} {
		for _, complete := range []bool{true, false} {
			f := finder{upstreams, complete, lists, catalog.Tools}
			for name, want := range map[string]catalog.Rule{"now": catalog.ByBareName, "db__query": catalog.ByBareName, "other": catalog.ByNobody} {
				if name == "db__query" && !complete {
					want = catalog.ByNobody
				}
				if got := f.named(name); got.By != want {
					t.Errorf("%s of %d known upstreams, complete %t: %v, want %v", name, len(lists), complete, got.By, want)
				}
			}
		}
	}
}
