package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A Listing is what one upstream offers of one kind.
type Listing struct {
	Offered bool // the upstream has such a list
	Prefix  string
	Entries []Entry
	Rest    []jsonrpc.Value
	Caching Caching
	Digest  Digest
}

// Only returns the listing of those entries whose names pass. The others are as if the
// upstream did not list them.
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

// A List is a merged list. It is handed out whole or by pages. The zero List is empty.
type List struct {
	entries []json.RawMessage
	rest    []jsonrpc.Value // what all pages say beside it
	digest  Digest          // of the entries: a list that did not change keeps its cursors
}

// Merge makes one list of those of several upstreams. If two of them list the same name,
// the first one's element counts, and the name is among the clashes. The first one also
// counts for each member of _meta.
func Merge(listings []Listing) (l *List, clashes []string) {
	l = new(List)
	listed, at := make(map[string]bool), make(map[string]int)
	hash := sha256.New()
	for _, li := range listings {
		shown := sha256.New()
		for _, e := range li.Entries {
			name, raw := e.exposed(li.Prefix)
			shown.Write(raw)
			if !listed[name] {
				listed[name] = true
				l.entries = append(l.entries, raw)
			} else {
				clashes = append(clashes, name)
			}
		}
		hash.Write(shown.Sum(nil))
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
	hash.Sum(l.digest[:0])
	return l, clashes
}

// joined returns an object with the members of both. If a member is in both, that of a
// counts. What is no object has no members.
func joined(a, b json.RawMessage) json.RawMessage {
	out, seen := []byte{'{'}, make(map[string]bool)
	for _, object := range []json.RawMessage{a, b} {
		// It is an error only for what is no object.
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

// Sign makes the list say which server it is from.
func (l *List) Sign(serverInfo json.RawMessage) {
	i := slices.IndexFunc(l.rest, func(m jsonrpc.Value) bool { return m.Key == "_meta" })
	if i < 0 {
		i = len(l.rest)
		l.rest = append(l.rest, jsonrpc.Value{Key: "_meta"})
	}
	l.rest[i].Text = jsonrpc.Set(l.rest[i].Text, jsonrpc.Value{Key: mcp.KeyServerInfo, Text: serverInfo})
}

// Say makes all pages of the list say how they may be kept.
func (l *List) Say(c Caching) { l.rest = append(l.rest, c.Members()...) }

// Page renders the entries from index from on as the result of a list request.
func (l *List) Page(k Kind, from, size int) json.RawMessage {
	to := len(l.entries)
	if size > 0 {
		to = min(to, from+size)
	}
	b := append([]byte(`{"`), k.Member()...)
	b = append(b, `":[`...)
	for i, e := range l.entries[from:to] {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, e...)
	}
	b = append(b, ']')
	if to < len(l.entries) {
		b = append(append(b, `,"nextCursor":`...), jsonrpc.Quote(l.cursor(to).String())...)
	}
	for _, m := range l.rest {
		b = append(append(append(append(b, ','), jsonrpc.Quote(m.Key)...), ':'), m.Text...)
	}
	return append(b, '}')
}

// A Cursor points into a list. It is opaque to clients. It is good for the same list,
// whenever and for whomever that was made, and for no other. The zero Cursor points to
// the beginning.
type Cursor struct {
	list [8]byte // of its digest
	From int     // index of an entry
}

// cursor points to an entry of the list.
func (l *List) cursor(from int) Cursor {
	return Cursor{[8]byte(l.digest[:]), from}
}

// Holds reports whether a cursor points to an entry of the list.
func (l *List) Holds(at Cursor) bool {
	return at == l.cursor(at.From) && at.From < len(l.entries)
}

// String returns the cursor as clients get it: "40715f9dba5d2fe6-1".
func (c Cursor) String() string { return hex.EncodeToString(c.list[:]) + "-" + strconv.Itoa(c.From) }

// ParseCursor reads the cursor of a request; nil is the zero Cursor. It is false for text
// that we never gave out.
func ParseCursor(raw json.RawMessage) (Cursor, bool) {
	if raw == nil {
		return Cursor{}, true
	}
	text, _ := jsonrpc.Unquote(raw)
	list, index, _ := strings.Cut(text, "-")
	from, err := strconv.Atoi(index)
	c := Cursor{From: from}
	if err != nil || from <= 0 || len(list) != hex.EncodedLen(len(c.list)) {
		return Cursor{}, false
	}
	_, err = hex.Decode(c.list[:], []byte(list))
	return c, err == nil && c.String() == text
}
