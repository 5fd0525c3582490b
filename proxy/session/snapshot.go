package session

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

// A snapshot is a merged list, which may be handed out by pages.
type snapshot struct {
	entries []json.RawMessage
	rest    []member // what all pages say beside it
	digest  digest   // of the entries: a list that did not change keeps its cursors
}

// snapshot returns the list of a kind whose pages were handed out last; an empty
// one if there is none.
func (s *session) snapshot(w *view, k kind) *snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return orDefault(w.pages[k], &snapshot{})
}

// keepSnapshot keeps a list if there are pages.
func (s *session) keepSnapshot(w *view, k kind, snap *snapshot) {
	if s.p.PageSize == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.pages == nil {
		w.pages = make(map[kind]*snapshot)
	}
	w.pages[k] = snap
}

// merge makes one list of those of several upstreams. What two of them have is that
// of the first; so is each member of _meta.
func (s *session) merge(k kind, listings []listing) *snapshot {
	snap := new(snapshot)
	listed, at := make(map[string]bool), make(map[string]int)
	hash := sha256.New()
	for _, li := range listings {
		shown := sha256.New()
		for _, e := range li.entries {
			name, raw := e.exposed(li.prefix)
			shown.Write(raw)
			if !listed[name] {
				listed[name] = true
				snap.entries = append(snap.entries, raw)
			} else if s.p.warnOnce("clash " + kindInfo[k].member + name) {
				s.log.Warn("listed by two upstreams: the first one in the config answers", kindInfo[k].key, name)
			}
		}
		hash.Write(shown.Sum(nil))
		for _, m := range li.rest {
			i, twice := at[m.key]
			switch {
			case !twice:
				at[m.key] = len(snap.rest)
				snap.rest = append(snap.rest, m)
			case m.key == "_meta":
				snap.rest[i].value = joined(snap.rest[i].value, m.value)
			}
		}
	}
	hash.Sum(snap.digest[:0])
	return snap
}

// joined returns an object with the members of both; of one that both have, a's.
// What is no object has none.
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

// signed returns the members of a list as what the proxy says.
func (s *session) signed(rest []member) []member {
	i := slices.IndexFunc(rest, func(m member) bool { return m.key == "_meta" })
	if i < 0 {
		i = len(rest)
		rest = append(rest, member{key: "_meta"})
	}
	rest[i].value = jsonrpc.Set(rest[i].value, jsonrpc.Value{Key: mcp.KeyServerInfo, Text: s.p.serverInfo()})
	return rest
}

// page renders the entries from index from on as the result of a list request.
func (sn *snapshot) page(k kind, from, size int) json.RawMessage {
	to := len(sn.entries)
	if size > 0 {
		to = min(to, from+size)
	}
	b := append([]byte(`{"`), kindInfo[k].member...)
	b = append(b, `":[`...)
	for i, e := range sn.entries[from:to] {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, e...)
	}
	b = append(b, ']')
	if to < len(sn.entries) {
		b = append(append(b, `,"nextCursor":`...), jsonrpc.Quote(sn.cursor(to).String())...)
	}
	for _, m := range sn.rest {
		b = append(append(append(append(b, ','), jsonrpc.Quote(m.key)...), ':'), m.value...)
	}
	return append(b, '}')
}

// A cursor points into a list. It is opaque to clients; one of another list must
// not be taken for one of this, and one of the same list must, whenever and for
// whomever that was listed. The zero value points to its beginning.
type cursor struct {
	list [8]byte // of its digest
	from int     // index of an entry
}

// cursor points to an entry of the list.
func (sn *snapshot) cursor(from int) cursor {
	return cursor{[8]byte(sn.digest[:]), from}
}

// holds reports whether a cursor points to an entry of the list.
func (sn *snapshot) holds(at cursor) bool {
	return at == sn.cursor(at.from) && at.from < len(sn.entries)
}

// String returns the cursor as clients get it: "40715f9dba5d2fe6-1".
func (c cursor) String() string { return hex.EncodeToString(c.list[:]) + "-" + strconv.Itoa(c.from) }

// parseCursor reads the cursor of a request; nil is the zero one. It is false for
// what was never one of ours.
func parseCursor(raw json.RawMessage) (cursor, bool) {
	if raw == nil {
		return cursor{}, true
	}
	text, _ := jsonrpc.Unquote(raw)
	list, index, _ := strings.Cut(text, "-")
	from, err := strconv.Atoi(index)
	c := cursor{from: from}
	if err != nil || from <= 0 || len(list) != hex.EncodedLen(len(c.list)) {
		return cursor{}, false
	}
	_, err = hex.Decode(c.list[:], []byte(list))
	return c, err == nil && c.String() == text
}

var unknownCursor = invalidParams("unknown cursor")
