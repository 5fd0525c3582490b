package jsonrpc

import (
	"cmp"
	"errors"
	"slices"
)

// Errors of Add and Put, besides the error of Close.
var (
	ErrInUse = errors.New("the id is in use")
	ErrFull  = errors.New("too many at a time")
)

// A Table holds entries that wait to be settled, by id. It is bounded, and keeps the order in which
// entries were added. An entry is taken out once. Whoever takes it settles it, and nobody else
// does.
//
// A Table has no lock. The lock of its owner guards it, together with state that must change in the
// same step. The zero value is an empty Table without a bound.
type Table[K, V comparable] struct {
	Max int // entries at a time; zero means no bound

	entries map[K]tableEntry[V]
	added   uint64
	closed  error // nil while open
}

type tableEntry[V comparable] struct {
	value V
	order uint64
}

// Add enters v under k. It returns [ErrInUse] if k is taken, [ErrFull] if the Table is full, and
// after Close the error given there.
func (t *Table[K, V]) Add(k K, v V) error {
	if t.closed != nil {
		return t.closed
	}
	if _, taken := t.entries[k]; taken {
		return ErrInUse
	}
	if t.Max > 0 && len(t.entries) >= t.Max {
		return ErrFull
	}
	if t.entries == nil {
		t.entries = make(map[K]tableEntry[V])
	}
	t.added++
	t.entries[k] = tableEntry[V]{v, t.added}
	return nil
}

// Get returns the entry under k; the zero V if there is none.
func (t *Table[K, V]) Get(k K) V { return t.entries[k].value }

// Has reports whether the entry under k is v itself.
func (t *Table[K, V]) Has(k K, v V) bool {
	e, ok := t.entries[k]
	return ok && e.value == v
}

// Take takes v out and reports whether it was there. Another entry that has reused k stays.
func (t *Table[K, V]) Take(k K, v V) bool {
	if !t.Has(k, v) {
		return false
	}
	delete(t.entries, k)
	return true
}

// TakeKey takes out the entry under k.
func (t *Table[K, V]) TakeKey(k K) (v V, ok bool) {
	e, ok := t.entries[k]
	if ok {
		delete(t.entries, k)
	}
	return e.value, ok
}

// TakeIf takes out all entries for which want returns true, and returns them in the order in which
// they were added. A nil want takes all.
func (t *Table[K, V]) TakeIf(want func(V) bool) []V {
	var taken []V
	for _, k := range t.keys(want) {
		v, _ := t.TakeKey(k)
		taken = append(taken, v)
	}
	return taken
}

// All returns the entries for which want returns true, in the order in which they were added. A nil
// want returns all.
func (t *Table[K, V]) All(want func(V) bool) []V {
	var all []V
	for _, k := range t.keys(want) {
		all = append(all, t.entries[k].value)
	}
	return all
}

// Any reports whether want returns true for an entry. It calls want in no particular order.
func (t *Table[K, V]) Any(want func(V) bool) bool {
	for _, e := range t.entries {
		if want(e.value) {
			return true
		}
	}
	return false
}

// Each calls fn with all entries, in the order in which they were added, until fn returns false. fn
// may take entries out. Each is an iterator: for k, v := range t.Each.
func (t *Table[K, V]) Each(fn func(k K, v V) bool) {
	for _, k := range t.keys(nil) {
		if e, ok := t.entries[k]; ok && !fn(k, e.value) {
			return
		}
	}
}

// Newest returns the last-added entry for which want returns true; a nil want means all.
func (t *Table[K, V]) Newest(want func(V) bool) (k K, v V, ok bool) {
	var order uint64 // orders start at 1
	for key, e := range t.entries {
		if e.order > order && (want == nil || want(e.value)) {
			k, v, order = key, e.value, e.order
		}
	}
	return k, v, order > 0
}

// keys returns the keys of the wanted entries, oldest first. It sorts, because keeping an order
// would cost more: entries come and go with each call, but are listed only when something ends.
func (t *Table[K, V]) keys(want func(V) bool) []K {
	var keys []K
	for k, e := range t.entries {
		if want == nil || want(e.value) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b K) int { return cmp.Compare(t.entries[a].order, t.entries[b].order) })
	return keys
}

// Len returns the number of entries.
func (t *Table[K, V]) Len() int { return len(t.entries) }

// Close takes out everything, in the order in which it was added. Later Adds return err, which must
// not be nil. The first Close counts.
func (t *Table[K, V]) Close(err error) []V {
	if t.closed == nil {
		t.closed = err
	}
	return t.TakeIf(nil)
}

// Closed returns the error of Close; nil before.
func (t *Table[K, V]) Closed() error { return t.closed }
