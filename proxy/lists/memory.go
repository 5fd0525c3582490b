package lists

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/catalog"
)

// A Memory is what all sessions of a router remember of upstreams. It outlives them. The zero Memory
// is empty.
type Memory struct {
	mu     sync.Mutex // guards the fields below; nothing else is locked under it
	tables map[tableKey]*catalog.Table
	recent recent                     // of tables of the modern era
	said   map[string]json.RawMessage // last descriptions of upstreams, in the legacy era
	late   map[lateKey]bool
	absent map[string]*Failure // why upstreams were last missing in a list, since any session's last start of them
	warned map[string]bool     // of what a warning was given
}

// A tableKey names what upstreams list to clients with the same capabilities.
type tableKey struct {
	upstream string
	kind     catalog.Kind
	caps     catalog.Digest // of the capabilities; zero in the legacy era
}

// A lateKey is a method for which an upstream was late, or Starts. The upstream is "" for all that are
// not known yet.
type lateKey struct{ upstream, method string }

// table returns the table last seen by any session, nil if there is none.
func (m *Memory) table(k tableKey) *catalog.Table {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tables[k]
}

// keep keeps t as the table last seen, and returns it, or an equal one that is kept
// already.
func (m *Memory) keep(k tableKey, t *catalog.Table) *catalog.Table {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.tables[k]; old != nil && old.Digest == t.Digest {
		t = old
	}
	put(&m.tables, k, t)
	if k.caps == (catalog.Digest{}) {
		return t // of the legacy era
	}
	if forgotten, ok := m.recent.add(k.caps); ok {
		maps.DeleteFunc(m.tables, func(old tableKey, _ *catalog.Table) bool { return old.caps == forgotten })
	}
	return t
}

// noteSaid notes how an upstream has described itself.
func (m *Memory) noteSaid(upstream string, result json.RawMessage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	put(&m.said, upstream, result)
}

// lastSaid returns how an upstream has described itself last, to any session; nil for never.
func (m *Memory) lastSaid(upstream string) json.RawMessage {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.said[upstream]
}

// WasLate reports whether an upstream did not answer a method in time, and has not since.
func (m *Memory) WasLate(upstream, method string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.late[lateKey{upstream, method}]
}

// NoteLate notes that an upstream did not answer a method in time; "" are those that are not known yet.
func (m *Memory) NoteLate(upstream, method string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	put(&m.late, lateKey{upstream, method}, true)
}

// NoteInTime notes that an upstream has answered.
func (m *Memory) NoteInTime(upstream, method string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.late, lateKey{upstream, method})
}

// noteMissing notes that an upstream is missing in a list, and reports whether that reason is new.
func (m *Memory) noteMissing(upstream string, f *Failure) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := m.absent[upstream]
	put(&m.absent, upstream, f)
	return last == nil || cmp.Or(last.event, last.cause) != cmp.Or(f.event, f.cause)
}

// Absent returns why an upstream was last missing in a list, "" if it was not since it started last.
func (m *Memory) Absent(upstream string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.absent[upstream]; f != nil {
		return cmp.Or(jsonrpc.WhatOf(f.Wire), f.cause)
	}
	return ""
}

// noteThere notes that an upstream has started.
func (m *Memory) noteThere(upstream string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.absent, upstream)
}

// Forgive gives upstreams another chance to be in time: they may be something else now.
func (m *Memory) Forgive(upstreams []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.said, func(upstream string, _ json.RawMessage) bool { return slices.Contains(upstreams, upstream) })
	maps.DeleteFunc(m.late, func(k lateKey, _ bool) bool { return slices.Contains(upstreams, k.upstream) })
}

// Retain forgets all about other upstreams than these. Others tells that there are some
// that are not known yet.
func (m *Memory) Retain(upstreams map[string]bool, others bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.tables, func(k tableKey, _ *catalog.Table) bool { return !upstreams[k.upstream] })
	maps.DeleteFunc(m.said, func(upstream string, _ json.RawMessage) bool { return !upstreams[upstream] })
	maps.DeleteFunc(m.absent, func(upstream string, _ *Failure) bool { return !upstreams[upstream] })
	maps.DeleteFunc(m.late, func(k lateKey, _ bool) bool {
		return !upstreams[k.upstream] && !(others && k.upstream == "")
	})
}

// WarnOnce reports whether a warning about subject is still to be given.
func (m *Memory) WarnOnce(subject string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.warned[subject] || len(m.warned) >= maxWarnings {
		return false
	}
	put(&m.warned, subject, true)
	return true
}

// maxWarnings bounds how many warnings are remembered, and given.
const maxWarnings = 1000

// all returns the tables last seen by any session.
func (m *Memory) all() map[tableKey]*catalog.Table {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.tables)
}

// A recent says of which capabilities something is remembered. The last used ones are at
// the end.
type recent []catalog.Digest

// maxCaps bounds it. What was used least recently is forgotten; a client that comes back
// makes the upstreams list again.
const maxCaps = 16

// add notes that caps are used, and returns which are to be forgotten for that, if
// any are.
func (r *recent) add(caps catalog.Digest) (forgotten catalog.Digest, full bool) {
	i := slices.Index(*r, caps)
	if full = i < 0 && len(*r) == maxCaps; full {
		i, forgotten = 0, (*r)[0]
	}
	if i >= 0 {
		*r = slices.Delete(*r, i, i+1)
	}
	*r = append(*r, caps)
	return forgotten, full
}

// put sets an entry of a map, which is made when it is first needed.
func put[K comparable, V any](m *map[K]V, k K, v V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[k] = v
}
