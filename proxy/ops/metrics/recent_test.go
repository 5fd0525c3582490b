package metrics

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

func recently(r *Metrics) (t observe.Traffic) {
	t.Upstream = "files"
	r.Fill(&t)
	return t
}

// The figures are of the last minute only.
func TestRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New("")
		ended := r.Hooks().CallEnded
		files := observe.Call{Upstream: "files", Method: mcp.MethodToolsCall}
		if got := recently(r); got != (observe.Traffic{Upstream: "files"}) {
			t.Errorf("before the first request: %+v", got)
		}
		for range 97 {
			ended(files, observe.End{At: time.Now(), Took: 20 * time.Millisecond, Outcome: observe.OK})
		}
		ended(files, observe.End{At: time.Now(), Took: 3 * time.Second, Outcome: observe.Failed})
		time.Sleep(30 * time.Second)
		for range 2 {
			ended(files, observe.End{At: time.Now(), Took: 3 * time.Second, Outcome: observe.OK})
		}
		ended(files, observe.End{At: time.Now(), Took: time.Hour, Outcome: observe.Cancelled})
		ended(observe.Call{Upstream: "files", Method: mcp.MethodListen}, observe.End{At: time.Now(), Took: time.Hour, Outcome: observe.OK})
		ended(observe.Call{Upstream: "docs"}, observe.End{At: time.Now(), Took: time.Hour, Outcome: observe.Failed})

		ended(files, observe.End{Took: time.Hour, Outcome: observe.OK})                                                 // nobody knows when
		ended(files, observe.End{At: time.Now().Add(time.Hour + 20*time.Second), Took: time.Hour, Outcome: observe.OK}) // before the clock was set back

		got := recently(r)
		if got.Requests != 100 || got.Errors != 1 {
			t.Errorf("%d requests, %d errors", got.Requests, got.Errors)
		}
		if math.Abs(got.P50-20) > 20/8 || math.Abs(got.P99-3000) > 3000/8 {
			t.Errorf("p50 %v ms, p99 %v ms", got.P50, got.P99)
		}
		if got.PerSecond < 100.0/60 || got.PerSecond > 100.0/55 {
			t.Errorf("%v a second", got.PerSecond)
		}
		time.Sleep(35 * time.Second)
		if got := recently(r); got.Requests != 2 || got.Errors != 0 {
			t.Errorf("after more than a minute: %+v", got)
		}
		time.Sleep(24 * time.Hour)
		if got := recently(r); got.Requests != 0 || got.P99 != 0 {
			t.Errorf("after a day: %+v", got)
		}
	})
}

// Each duration is in one class, whose middle is not far from it.
func TestClassesOfDurations(t *testing.T) {
	last := 0
	for d := time.Microsecond; d < 4*time.Minute; d += max(d/50, time.Microsecond) {
		c := classOf(d)
		if c < last || c >= classes {
			t.Fatalf("%v is of class %d, behind %d", d, c, last)
		}
		last = c
		ms := float64(d.Microseconds()) / 1000
		if got := middleOf(c); math.Abs(got-ms) > ms/8+0.001 {
			t.Fatalf("%v is taken for %v ms", d, got)
		}
	}
	if classOf(time.Hour) != classes-1 || classOf(-1) != 0 || last != classes-1 {
		t.Errorf("the bounds: %d, %d, %d", classOf(time.Hour), classOf(-1), last)
	}
}

// A request that is counted takes no memory.
func TestRecentAllocatesNothing(t *testing.T) {
	ended := New("").Hooks().CallEnded
	q, end := observe.Call{Upstream: "files", Method: mcp.MethodToolsCall}, observe.End{At: time.Now(), Took: time.Millisecond, Outcome: observe.OK}
	ended(q, end)
	if n := testing.AllocsPerRun(100, func() { ended(q, end) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Nil Metrics say nothing.
func TestNoRecent(t *testing.T) {
	if got := recently(nil); got != (observe.Traffic{Upstream: "files"}) {
		t.Errorf("%+v", got)
	}
}

func BenchmarkRecent(b *testing.B) {
	ended := New("").Hooks().CallEnded
	q, end := observe.Call{Upstream: "files", Method: mcp.MethodToolsCall}, observe.End{At: time.Now(), Took: time.Millisecond, Outcome: observe.OK}
	for b.Loop() {
		ended(q, end)
	}
}
