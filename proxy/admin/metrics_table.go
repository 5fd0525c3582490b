package admin

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// A table holds the series of one metric by their labels. What is in it is found without a
// lock, and stays. Who adds copies it: that is rare, since there are few series.
type table[K comparable, V any] struct {
	most int // entries; one more for each key that stands for the rest

	entries atomic.Pointer[map[K]*V] // never changed, but replaced
	mu      sync.Mutex               // held by who replaces it
}

func (t *table[K, V]) all() map[K]*V {
	if now := t.entries.Load(); now != nil {
		return *now
	}
	return nil
}

// find returns the series of k, nil if there is none.
func (t *table[K, V]) find(k K) *V { return t.all()[k] }

// add returns the series of k, a new one if need be; nil if there is no room for it.
func (t *table[K, V]) add(k K) *V {
	if v := t.find(k); v != nil || len(t.all()) >= t.most {
		return v
	}
	return t.enter(k, t.most)
}

// get returns the series of k, or that of rest if there is no room. Keys for the rest must
// be few.
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
		return v // somebody was faster
	}
	next := make(map[K]*V, len(now)+1)
	maps.Copy(next, now)
	next[k] = new(V)
	t.entries.Store(&next)
	return next[k]
}

// bounds are the upper bounds of the buckets of durations, in seconds, as the semantic
// conventions for MCP have them.
var bounds = [...]float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300}

// limits are the bounds.
var limits = func() (d [len(bounds)]time.Duration) {
	for i, seconds := range bounds {
		d[i] = time.Duration(seconds * float64(time.Second))
	}
	return d
}()

// A histogram counts durations.
type histogram struct {
	buckets [len(bounds) + 1]atomic.Uint64 // each without those below; the last for what is beyond all bounds
	sum     atomic.Int64                   // nanoseconds
}

func (h *histogram) observe(d time.Duration) {
	i := 0
	for i < len(limits) && d > limits[i] {
		i++
	}
	h.sum.Add(int64(d))
	h.buckets[i].Add(1)
}

// read returns the count, the sum in seconds, and how many were up to each bound.
func (h *histogram) read() (count uint64, sum float64, upTo map[float64]uint64) {
	upTo = make(map[float64]uint64, len(bounds))
	for i := range h.buckets {
		count += h.buckets[i].Load()
		if i < len(bounds) {
			upTo[bounds[i]] = count
		}
	}
	return count, time.Duration(h.sum.Load()).Seconds(), upTo
}

// allOutcomes are the outcomes that have series. Any other counts as an error.
var allOutcomes = [...]observe.Outcome{
	observe.Failed, observe.OK, observe.Cancelled, observe.Closed, observe.Timeout, observe.Overloaded, observe.InvalidResponse,
}

func indexOf(o observe.Outcome) int {
	for i, known := range allOutcomes {
		if o == known {
			return i
		}
	}
	return 0
}

// errorType is the outcome as the label error_type: "" where nothing went wrong.
func errorType(o observe.Outcome) string {
	if o == observe.OK {
		return ""
	}
	return string(o)
}

// Outcomes counts them.
type outcomes [len(allOutcomes)]atomic.Int64

// An operation is something that is done again and again: how many are at it, and how long
// those took that are over, by outcome.
type operation struct {
	open  atomic.Int64
	ended [len(allOutcomes)]histogram
}

func (o *operation) took(end observe.End) { o.ended[indexOf(end.Outcome)].observe(end.Took) }
