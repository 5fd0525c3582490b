package metrics

import (
	"runtime"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
	"strings"
	"time"
)

// Dashboards know the metrics of a process and of the Go runtime by the names that Prometheus's client for Go gives them
// (its NewProcessCollector and NewGoCollector).

var (
	cpuTime         = describe("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.")
	openFiles       = describe("process_open_fds", "Number of open file descriptors.")
	mostFiles       = describe("process_max_fds", "Maximum number of open file descriptors.")
	virtualMemory   = describe("process_virtual_memory_bytes", "Virtual memory size in bytes.")
	mostMemory      = describe("process_virtual_memory_max_bytes", "Maximum amount of virtual memory available in bytes.")
	residentMemory  = describe("process_resident_memory_bytes", "Resident memory size in bytes.")
	startTime       = describe("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
	networkReceived = describe("process_network_receive_bytes_total", "Number of bytes received by the process over the network.")
	networkSent     = describe("process_network_transmit_bytes_total", "Number of bytes sent by the process over the network.")

	goInfo       = describe("go_info", "Information about the Go environment.", "version")
	goroutines   = describe("go_goroutines", "Number of goroutines that currently exist.")
	threads      = describe("go_threads", "Number of OS threads created.")
	pausesOfGC   = describe("go_gc_duration_seconds", "A summary of the wall-time pause (stop-the-world) duration in garbage collection cycles.")
	lastGC       = describe("go_memstats_last_gc_time_seconds", "Number of seconds since 1970 of last garbage collection.")
	ofTheRuntime = []fromRuntime{
		sourced("go_gc_gogc_percent", "Heap size target percentage configured by the user, otherwise 100. This value is set by the GOGC environment variable, and the runtime/debug.SetGCPercent function.", "/gc/gogc:percent"),
		sourced("go_gc_gomemlimit_bytes", "Go runtime memory limit configured by the user, otherwise math.MaxInt64. This value is set by the GOMEMLIMIT environment variable, and the runtime/debug.SetMemoryLimit function.", "/gc/gomemlimit:bytes"),
		sourced("go_sched_gomaxprocs_threads", "The current runtime.GOMAXPROCS setting, or the number of operating system threads that can execute user-level Go code simultaneously.", "/sched/gomaxprocs:threads"),
		equal("alloc_bytes", "Number of bytes allocated in heap and currently in use.", heapObjects),
		equal("alloc_bytes_total", "Total number of bytes allocated in heap until now, even if released already.", "/gc/heap/allocs:bytes"),
		equal("sys_bytes", "Number of bytes obtained from system.", "/memory/classes/total:bytes"),
		equal("mallocs_total", "Total number of heap objects allocated, both live and gc-ed. Semantically a counter version for go_memstats_heap_objects gauge.", "/gc/heap/allocs:objects", tinyAllocs),
		equal("frees_total", "Total number of heap objects frees.", "/gc/heap/frees:objects", tinyAllocs),
		equal("heap_alloc_bytes", "Number of heap bytes allocated and currently in use, same as go_memstats_alloc_bytes.", heapObjects),
		equal("heap_sys_bytes", "Number of heap bytes obtained from system.", heapObjects, heapUnused, heapReleased, heapFree),
		equal("heap_idle_bytes", "Number of heap bytes waiting to be used.", heapReleased, heapFree),
		equal("heap_inuse_bytes", "Number of heap bytes that are in use.", heapObjects, heapUnused),
		equal("heap_released_bytes", "Number of heap bytes released to OS.", heapReleased),
		equal("heap_objects", "Number of currently allocated objects.", "/gc/heap/objects:objects"),
		equal("stack_inuse_bytes", "Number of bytes obtained from system for stack allocator in non-CGO environments.", heapStacks),
		equal("stack_sys_bytes", "Number of bytes obtained from system for stack allocator.", heapStacks, "/memory/classes/os-stacks:bytes"),
		equal("mspan_inuse_bytes", "Number of bytes in use by mspan structures.", mspanInUse),
		equal("mspan_sys_bytes", "Number of bytes used for mspan structures obtained from system.", mspanInUse, "/memory/classes/metadata/mspan/free:bytes"),
		equal("mcache_inuse_bytes", "Number of bytes in use by mcache structures.", mcacheInUse),
		equal("mcache_sys_bytes", "Number of bytes used for mcache structures obtained from system.", mcacheInUse, "/memory/classes/metadata/mcache/free:bytes"),
		equal("buck_hash_sys_bytes", "Number of bytes used by the profiling bucket hash table.", "/memory/classes/profiling/buckets:bytes"),
		equal("gc_sys_bytes", "Number of bytes used for garbage collection system metadata.", "/memory/classes/metadata/other:bytes"),
		equal("other_sys_bytes", "Number of bytes used for other system allocations.", "/memory/classes/other:bytes"),
		equal("next_gc_bytes", "Number of heap bytes when next garbage collection will take place.", "/gc/heap/goal:bytes"),
	}
)

// Metrics of the package runtime/metrics that several of ours include.
const (
	tinyAllocs   = "/gc/heap/tiny/allocs:objects"
	heapObjects  = "/memory/classes/heap/objects:bytes"
	heapUnused   = "/memory/classes/heap/unused:bytes"
	heapReleased = "/memory/classes/heap/released:bytes"
	heapFree     = "/memory/classes/heap/free:bytes"
	heapStacks   = "/memory/classes/heap/stacks:bytes"
	mspanInUse   = "/memory/classes/metadata/mspan/inuse:bytes"
	mcacheInUse  = "/memory/classes/metadata/mcache/inuse:bytes"
)

// A fromRuntime is a metric that is the sum of metrics of the package runtime/metrics.
type fromRuntime struct {
	*metric
	sources []string
}

// sourced returns one that has the unit of its only source.
func sourced(name, help, source string) fromRuntime {
	m := describe(name, help+" Sourced from "+source+".")
	_, m.unit, _ = strings.Cut(source, ":")
	return fromRuntime{m, []string{source}}
}

// equal returns one that was once a field of [runtime.MemStats].
func equal(name, help string, sources ...string) fromRuntime {
	return fromRuntime{describe("go_memstats_"+name, help+" Equals to "+strings.Join(sources, " + ")+"."), sources}
}

// addRuntime adds the metrics of the Go runtime.
func (o out) addRuntime() {
	o.gauge(goInfo, 1, runtime.Version())
	o.gauge(goroutines, float64(runtime.NumGoroutine()))
	n, _ := runtime.ThreadCreateProfile(nil)
	o.gauge(threads, float64(n))
	gc := pauses{PauseQuantiles: make([]time.Duration, 5)}
	debug.ReadGCStats((*debug.GCStats)(&gc))
	o.add(pausesOfGC, "summary", &gc)
	o.gauge(lastGC, float64(gc.LastGC.UnixNano())/1e9)

	var all []runtimemetrics.Sample // at the same moment
	for _, m := range ofTheRuntime {
		for _, source := range m.sources {
			all = append(all, runtimemetrics.Sample{Name: source})
		}
	}
	runtimemetrics.Read(all)
	for _, m := range ofTheRuntime {
		sum := uint64(0)
		for range m.sources {
			sum, all = sum+all[0].Value.Uint64(), all[1:]
		}
		kind := "gauge"
		if strings.HasSuffix(m.name, "_total") {
			kind = "counter"
		}
		o.add(m.metric, kind, number(sum))
	}
}

// pauses are those of the garbage collector.
type pauses debug.GCStats

// lines implements [value].
func (p *pauses) lines(b []byte, f format, name, labels string) []byte {
	for i, q := range p.PauseQuantiles {
		b = line(b, name, `quantile="`+f.float(float64(i)/float64(len(p.PauseQuantiles)-1))+`"`, f.float(q.Seconds()))
	}
	b = line(b, name+"_sum", labels, f.float(p.PauseTotal.Seconds()))
	return line(b, name+"_count", labels, f.count(uint64(p.NumGC)))
}

// started is when this process started, or a moment later.
var started = time.Now()

// addProcess adds what the system knows of this process.
func (o out) addProcess() {
	o.gauge(startTime, float64(started.UnixNano())/1e9)
	o.addSystem()
}
