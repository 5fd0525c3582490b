package metrics

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"
)

// bounds are the upper bounds of the buckets in seconds, as in the semantic conventions for MCP.
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
	buckets [len(bounds) + 1]atomic.Uint64 // not cumulative; the last is for durations beyond all bounds
	sum     atomic.Int64                   // nanoseconds
	traced  [len(bounds) + 1]atomic.Pointer[exemplar]
}

// An exemplar is a duration with its trace.
type exemplar struct {
	took  time.Duration
	trace string
	at    time.Time
}

// observe counts a duration. trace is the id of its trace, "" for none. The newest traced duration of a bucket is its
// exemplar.
func (h *histogram) observe(took time.Duration, trace string) {
	i := 0
	for i < len(limits) && took > limits[i] {
		i++
	}
	h.sum.Add(int64(took))
	h.buckets[i].Add(1)
	if trace != "" {
		h.traced[i].Store(&exemplar{took, trace, time.Now()})
	}
}

// lines implements [value].
func (h *histogram) lines(b []byte, f format, name, labels string) []byte {
	var count uint64
	before := labels
	if labels != "" {
		before += ","
	}
	for i := range h.buckets {
		bound := math.Inf(1)
		if i < len(bounds) {
			bound = bounds[i]
		}
		count += h.buckets[i].Load()
		b = line(b, name+"_bucket", before+`le="`+f.float(bound)+`"`, f.count(count)+h.traced[i].Load().text(f))
	}
	b = line(b, name+"_sum", labels, f.float(time.Duration(h.sum.Load()).Seconds()))
	return line(b, name+"_count", labels, f.count(count))
}

// text returns what follows the count of a bucket.
func (e *exemplar) text(f format) string {
	if e == nil || f != openMetrics {
		return ""
	}
	return fmt.Sprintf(` # {trace_id="%s"} %s %s`, e.trace, f.float(e.took.Seconds()), f.float(float64(e.at.UnixNano())/1e9))
}
