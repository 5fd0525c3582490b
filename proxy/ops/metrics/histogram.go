package metrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	traced  [len(bounds) + 1]atomic.Pointer[prometheus.Exemplar]
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
		h.traced[i].Store(&prometheus.Exemplar{
			Value: took.Seconds(), Labels: prometheus.Labels{"trace_id": trace}, Timestamp: time.Now(),
		})
	}
}

// metric converts the histogram for Prometheus. Exemplars appear in OpenMetrics only.
func (h *histogram) metric(d *prometheus.Desc, labels ...string) prometheus.Metric {
	var count uint64
	var traced []prometheus.Exemplar
	upTo := make(map[float64]uint64, len(bounds))
	for i := range h.buckets {
		count += h.buckets[i].Load()
		if i < len(bounds) {
			upTo[bounds[i]] = count
		}
		if e := h.traced[i].Load(); e != nil {
			traced = append(traced, *e)
		}
	}
	m := prometheus.MustNewConstHistogram(d, count, time.Duration(h.sum.Load()).Seconds(), upTo, labels...)
	if len(traced) == 0 {
		return m
	}
	return prometheus.MustNewMetricWithExemplars(m, traced...)
}
