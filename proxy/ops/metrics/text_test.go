package metrics

import (
	"bytes"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
)

// written returns all as a scraper reads it.
func written(all out, f format) string {
	var b bytes.Buffer
	all.writeTo(&b, f)
	return b.String()
}

// Both formats are what the library of Prometheus writes after it has read one of them.
func TestFormatsAreThoseOfPrometheus(t *testing.T) {
	m, now := everything()
	h := m.Hooks()
	for _, name := range []string{"a", "a b", "a!", `a"b\c` + "\nd", "not \xff UTF-8", "ü"} {
		h.Refused(name)
		h.SessionEnded(observe.Session{Transport: name}, observe.End{Took: 1_000_000 * time.Hour, Outcome: observe.OK})
	}
	for range 1_234_567 {
		h.Refused("often")
	}
	all := m.collect(func() observe.Snapshot { return now })
	text := written(all, plainText)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil || len(families) != len(all) {
		t.Fatalf("%v: %d of %d families in\n%s", err, len(families), len(all), text)
	}
	var want, wantOpen bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(families)) {
		of := families[name]
		if _, err := expfmt.MetricFamilyToText(&want, of); err != nil {
			t.Error(err)
		}
		if unit := all[name].unit; unit != "" { // which the text does not have
			of.Unit = &unit
		}
		if _, err := expfmt.MetricFamilyToOpenMetrics(&wantOpen, of); err != nil {
			t.Error(err)
		}
	}
	_, _ = expfmt.FinalizeOpenMetrics(&wantOpen)
	equalLines(t, text, want.String())
	equalLines(t, written(all, openMetrics), wantOpen.String())
}

func equalLines(t *testing.T, got, want string) {
	t.Helper()
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			t.Fatalf("line %d is\n%s\nwant\n%s", i, a[i], b[i])
		}
	}
	if len(a) != len(b) {
		t.Fatalf("%d lines, want %d", len(a), len(b))
	}
}

// Scrapes are in the same order each time: families by name, series by the values of their labels, which are in
// alphabetical order.
func TestOrder(t *testing.T) {
	m, now := everything()
	for _, name := range []string{"a b", "a", `a"`} {
		m.Hooks().Refused(name)
	}
	all := m.collect(func() observe.Snapshot { return now })
	for name, of := range all {
		if !slices.IsSorted(of.labels) {
			t.Errorf("labels of %s: %q", name, of.labels)
		}
		for _, s := range of.samples {
			if len(s.labels) != len(of.labels) {
				t.Errorf("%s has the labels %q, and %q", name, of.labels, s.labels)
			}
		}
	}
	var refusals []string
	for line := range strings.Lines(written(all, plainText)) {
		if strings.HasPrefix(line, "mcp_proxy_refusals_total{") {
			refusals = append(refusals, strings.TrimSuffix(strings.TrimPrefix(line, "mcp_proxy_refusals_total{reason="), " 1\n"))
		}
	}
	if want := []string{`"a"}`, `"a b"}`, `"a\""}`, `"invalid_token"}`}; !slices.Equal(refusals, want) {
		t.Errorf("%q", refusals)
	}
}

// The metrics of the process and of the runtime that Prometheus's client for Go has are there, with plausible values.
func TestProcess(t *testing.T) {
	all := make(out)
	all.addRuntime()
	all.addProcess()
	value := func(name string) float64 {
		if all[name] == nil {
			t.Errorf("no %s", name)
			return -1
		}
		v, _ := all[name].samples[0].value.(number)
		return float64(v)
	}
	for _, name := range []string{"go_info", "go_goroutines", "go_threads", "go_gc_gogc_percent", "go_gc_gomemlimit_bytes", "go_sched_gomaxprocs_threads",
		"go_memstats_alloc_bytes", "go_memstats_alloc_bytes_total", "go_memstats_sys_bytes", "go_memstats_mallocs_total", "go_memstats_heap_alloc_bytes",
		"go_memstats_heap_sys_bytes", "go_memstats_heap_inuse_bytes", "go_memstats_heap_objects", "go_memstats_stack_inuse_bytes", "go_memstats_stack_sys_bytes",
		"go_memstats_mspan_inuse_bytes", "go_memstats_mspan_sys_bytes", "go_memstats_mcache_inuse_bytes", "go_memstats_mcache_sys_bytes",
		"go_memstats_gc_sys_bytes", "go_memstats_other_sys_bytes", "go_memstats_next_gc_bytes"} {
		if value(name) <= 0 {
			t.Errorf("%s is %v", name, value(name))
		}
	}
	for _, name := range []string{"go_memstats_frees_total", "go_memstats_heap_idle_bytes", "go_memstats_heap_released_bytes", "go_memstats_buck_hash_sys_bytes"} {
		if value(name) < 0 {
			t.Errorf("%s is %v", name, value(name))
		}
	}
	if value("go_memstats_heap_sys_bytes") != value("go_memstats_heap_inuse_bytes")+value("go_memstats_heap_idle_bytes") {
		t.Error("the parts of the heap are not the heap")
	}
	if all["go_gc_duration_seconds"] == nil || all["go_memstats_last_gc_time_seconds"] == nil {
		t.Error("no garbage collection")
	}
	now := float64(time.Now().UnixNano()) / 1e9
	if began := value("process_start_time_seconds"); began > now || began < now-3600 {
		t.Errorf("the process began at %f, and it is %f", began, now)
	}
	if runtime.GOOS != "linux" {
		return
	}
	for name, atMost := range map[string]float64{"process_cpu_seconds_total": 3600, "process_open_fds": 1000, "process_max_fds": 1 << 40,
		"process_virtual_memory_bytes": 1 << 50, "process_virtual_memory_max_bytes": 1 << 64, "process_resident_memory_bytes": 1 << 36,
		"process_network_receive_bytes_total": 1 << 60, "process_network_transmit_bytes_total": 1 << 60} {
		if v := value(name); v < 0 || v > atMost || v == 0 && !strings.Contains(name, "network") {
			t.Errorf("%s is %v", name, v)
		}
	}
	if value("process_resident_memory_bytes") > value("process_virtual_memory_bytes") || value("process_open_fds") > value("process_max_fds") {
		t.Error("more than there is")
	}
}
