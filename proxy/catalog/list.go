package catalog

import (
	"crypto/sha256"
	"encoding/json"
	"slices"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A Listing is one list of one upstream, as an operand of Merge.
type Listing struct {
	Offered bool // the upstream has such a list
	Prefix  string
	Entries []Entry
	Rest    []jsonrpc.Value
	Caching Caching
	Digest  Digest
}

// Only returns the listing with only the entries whose names pass.
func (li *Listing) Only(may func(name string) bool) *Listing {
	hidden := func(e Entry) bool { return !may(e.Name) }
	if !slices.ContainsFunc(li.Entries, hidden) {
		return li
	}
	less := *li
	less.Entries = slices.DeleteFunc(slices.Clone(li.Entries), hidden)
	hash := sha256.New()
	for _, e := range less.Entries {
		hash.Write(e.raw)
	}
	hash.Sum(less.Digest[:0])
	return &less
}

// A List is a merged list, as one page. The zero List is empty.
type List struct {
	entries []json.RawMessage
	rest    []jsonrpc.Value // the other members of the result
}

// Merge merges the lists of several upstreams. If two of them list the same name, the element of
// the first wins and the name is among the clashes. The first also wins for each member of _meta.
func Merge(listings []Listing) (l *List, clashes []string) {
	l = new(List)
	listed, at := make(map[string]bool), make(map[string]int)
	for _, li := range listings {
		for _, e := range li.Entries {
			name, raw := e.exposed(li.Prefix)
			if !listed[name] {
				listed[name] = true
				l.entries = append(l.entries, raw)
			} else {
				clashes = append(clashes, name)
			}
		}
		for _, m := range li.Rest {
			i, twice := at[m.Key]
			switch {
			case !twice:
				at[m.Key] = len(l.rest)
				l.rest = append(l.rest, m)
			case m.Key == "_meta":
				l.rest[i].Text = joined(l.rest[i].Text, m.Text)
			}
		}
	}
	return l, clashes
}

// joined returns an object with the members of both; a wins for common members. A value that is no
// object has none.
func joined(a, b json.RawMessage) json.RawMessage {
	out, seen := []byte{'{'}, make(map[string]bool)
	for _, object := range []json.RawMessage{a, b} {
		// The error is for values that are not objects.
		_ = jsonrpc.Each(object, func(key string, value json.RawMessage) {
			if seen[key] {
				return
			}
			if seen[key] = true; len(out) > 1 {
				out = append(out, ',')
			}
			out = append(append(append(out, jsonrpc.Quote(key)...), ':'), value...)
		})
	}
	return append(out, '}')
}

// Sign adds the server's own info to the list.
func (l *List) Sign(serverInfo json.RawMessage) {
	i := slices.IndexFunc(l.rest, func(m jsonrpc.Value) bool { return m.Key == "_meta" })
	if i < 0 {
		i = len(l.rest)
		l.rest = append(l.rest, jsonrpc.Value{Key: "_meta"})
	}
	l.rest[i].Text = jsonrpc.Set(l.rest[i].Text, jsonrpc.Value{Key: mcp.KeyServerInfo, Text: serverInfo})
}

// Say adds the caching to the list.
func (l *List) Say(c Caching) { l.rest = append(l.rest, c.Members()...) }

// Result returns the result of the list request.
func (l *List) Result(k Kind) json.RawMessage {
	b := append([]byte(`{"`), k.Member()...)
	b = append(b, `":[`...)
	for i, e := range l.entries {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, e...)
	}
	b = append(b, ']')
	for _, m := range l.rest {
		b = append(append(append(append(b, ','), jsonrpc.Quote(m.Key)...), ':'), m.Text...)
	}
	return append(b, '}')
}
