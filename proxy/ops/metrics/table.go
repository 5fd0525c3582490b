package metrics

import (
	"maps"
	"sync"
	"sync/atomic"
)

// A table holds the series of one metric by their labels. Readers take no lock, and entries are never removed. Adding
// copies the map, which is rare because there are few series.
type table[K comparable, V any] struct {
	most int // entries, besides those for the rest

	entries atomic.Pointer[map[K]*V] // immutable; add replaces it
	mu      sync.Mutex               // held to replace entries
}

func (t *table[K, V]) all() map[K]*V {
	if now := t.entries.Load(); now != nil {
		return *now
	}
	return nil
}

// find returns the series of k, nil if there is none.
func (t *table[K, V]) find(k K) *V { return t.all()[k] }

// add returns the series of k, a new one if there is none; nil if the table is full.
func (t *table[K, V]) add(k K) *V {
	if v := t.find(k); v != nil || len(t.all()) >= t.most {
		return v
	}
	return t.enter(k, t.most)
}

// get returns the series of k, or that of rest if the table is full. Callers use few different keys for rest.
func (t *table[K, V]) get(k, rest K) *V {
	if v := t.add(k); v != nil {
		return v
	}
	if v := t.find(rest); v != nil {
		return v
	}
	return t.enter(rest, 2*t.most+1)
}

func (t *table[K, V]) enter(k K, most int) *V {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.all()
	if v := now[k]; v != nil || len(now) >= most {
		return v // another goroutine was faster
	}
	next := make(map[K]*V, len(now)+1)
	maps.Copy(next, now)
	next[k] = new(V)
	t.entries.Store(&next)
	return next[k]
}
