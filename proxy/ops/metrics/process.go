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
	cpuTime         = describe("process_cpu_seconds_total", "CPU time of the proxy, of user and system, in seconds.")
	openFiles       = describe("process_open_fds", "Open file descriptors.")
	mostFiles       = describe("process_max_fds", "Limit of open file descriptors.")
	virtualMemory   = describe("process_virtual_memory_bytes", "Virtual memory.")
	mostMemory      = describe("process_virtual_memory_max_bytes", "Limit of virtual memory.")
	residentMemory  = describe("process_resident_memory_bytes", "Resident memory.")
	startTime       = describe("process_start_time_seconds", "When the proxy was started, in seconds since 1970.")
	networkReceived = describe("process_network_receive_bytes_total", "Bytes that the network namespace of the proxy has received.")
	networkSent     = describe("process_network_transmit_bytes_total", "Bytes that the network namespace of the proxy has sent.")

	goInfo       = describe("go_info", "The version of Go.", "version")
	goroutines   = describe("go_goroutines", "Goroutines.")
	threads      = describe("go_threads", "Threads that were started.")
	pausesOfGC   = describe("go_gc_duration_seconds", "How long garbage collections have stopped the program.")
	lastGC       = describe("go_memstats_last_gc_time_seconds", "When the last garbage collection ended, in seconds since 1970.")
	ofTheRuntime = []fromRuntime{
		sourced("go_gc_gogc_percent", "By how much the heap may grow until the next garbage collection (GOGC).", "/gc/gogc:percent"),
		sourced("go_gc_gomemlimit_bytes", "The soft limit of memory (GOMEMLIMIT).", "/gc/gomemlimit:bytes"),
		sourced("go_sched_gomaxprocs_threads", "How many threads run Go code at the same time at most (GOMAXPROCS).", "/sched/gomaxprocs:threads"),
		equal("alloc_bytes", "Heap in use by objects.", heapObjects),
		equal("alloc_bytes_total", "Heap that was allocated, including what was freed.", "/gc/heap/allocs:bytes"),
		equal("sys_bytes", "All memory from the system.", "/memory/classes/total:bytes"),
		equal("mallocs_total", "Heap objects that were allocated.", "/gc/heap/allocs:objects", tinyAllocs),
		equal("frees_total", "Heap objects that were freed.", "/gc/heap/frees:objects", tinyAllocs),
		equal("heap_alloc_bytes", "Heap in use by objects, as go_memstats_alloc_bytes.", heapObjects),
		equal("heap_sys_bytes", "Heap from the system.", heapObjects, heapUnused, heapReleased, heapFree),
		equal("heap_idle_bytes", "Heap in spans without objects.", heapReleased, heapFree),
		equal("heap_inuse_bytes", "Heap in spans with objects.", heapObjects, heapUnused),
		equal("heap_released_bytes", "Heap that was given back to the system.", heapReleased),
		equal("heap_objects", "Heap objects in use.", "/gc/heap/objects:objects"),
		equal("stack_inuse_bytes", "Stacks of goroutines.", heapStacks),
		equal("stack_sys_bytes", "Stacks of goroutines and threads, from the system.", heapStacks, "/memory/classes/os-stacks:bytes"),
		equal("mspan_inuse_bytes", "Descriptors of spans in use.", mspanInUse),
		equal("mspan_sys_bytes", "Descriptors of spans, from the system.", mspanInUse, "/memory/classes/metadata/mspan/free:bytes"),
		equal("mcache_inuse_bytes", "Caches of the allocator in use.", mcacheInUse),
		equal("mcache_sys_bytes", "Caches of the allocator, from the system.", mcacheInUse, "/memory/classes/metadata/mcache/free:bytes"),
		equal("buck_hash_sys_bytes", "Tables of the profiler, from the system.", "/memory/classes/profiling/buckets:bytes"),
		equal("gc_sys_bytes", "What the garbage collector needs, from the system.", "/memory/classes/metadata/other:bytes"),
		equal("other_sys_bytes", "Other memory of the runtime, from the system.", "/memory/classes/other:bytes"),
		equal("next_gc_bytes", "Size of the heap at which the next garbage collection begins.", "/gc/heap/goal:bytes"),
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
