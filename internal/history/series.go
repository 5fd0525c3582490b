package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A quantity is what a reading has a number of. What must not grow has a floor: growth by less is none. The heap in use
// has none, since it is garbage for the most part; what collections leave of it has.
type quantity struct {
	name, unit string
	floor      float64
}

const (
	resident = iota
	private
	heap
	live
	descriptors
	goroutines
	threads
	servants
	median
	slow
	calls
	share
)

// The floors are a few servers with what they need, and some garbage.
var quantities = [...]quantity{
	resident:    {"resident memory", "MiB", 64},
	private:     {"private memory", "MiB", 64},
	heap:        {"heap in use", "MiB", 0},
	live:        {"heap after collections", "MiB", 8},
	descriptors: {"descriptors", "", 16},
	goroutines:  {"goroutines", "", 40},
	threads:     {"threads", "", 8},
	servants:    {"processes", "", 8},
	median:      {"p50 of calls", "ms", 2},
	slow:        {"p99 of calls", "ms", 20},
	calls:       {"operations", "1/s", 0},
	share:       {"CPU of all cores", "%", 0},
}

// A reading is what one second of a soak was like. What is not known is NaN.
type reading struct {
	at     int64
	slice  int  // counts from 1
	active bool // clients are there
	values [len(quantities)]float64
}

// A series is a reading each second.
type series struct {
	world  *world
	active atomic.Bool
	file   *os.File
	rows   *csv.Writer

	// Of the goroutine that watches.
	busy int // CPU time so far, in ticks
	last int64

	mu      sync.Mutex // guards the fields below
	all     []reading
	slices  int
	written int // so many of all are in the file
}

func newSeries(w *world) (*series, error) {
	f, err := os.Create(filepath.Join(w.dir, "soak.csv"))
	if err != nil {
		return nil, err
	}
	s := &series{world: w, file: f, rows: csv.NewWriter(f), busy: cpuOf(os.Getpid()), last: now(), slices: 1}
	header := []string{"s", "slice", "active"}
	for _, q := range quantities {
		header = append(header, strings.TrimSpace(q.name+" "+q.unit))
	}
	return s, s.rows.Write(header)
}

// watch reads each second until ctx is done, and each five adjusts how long clients pause.
func (s *series) watch(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	used := 0.
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		was := s.active.Load()
		r := s.read()
		r.active = was && s.active.Load()
		s.mu.Lock()
		r.slice = s.slices
		s.all = append(s.all, r)
		s.mu.Unlock()
		if !r.active {
			n, used = 0, 0
			continue
		}
		if used += r.values[share] / 100; n == 5 {
			s.adjust(used / 5)
			n, used = 0, 0
		}
	}
}

// adjust changes the pauses of clients by a part of what the share of the machine is off.
func (s *series) adjust(used float64) {
	pause := cmp.Or(time.Duration(s.world.pause.Load()), s.world.gap)
	pause = time.Duration(float64(pause) * min(max(math.Sqrt(used/third), 0.7), 1.4))
	s.world.pause.Store(int64(min(max(pause, time.Millisecond), slowest)))
}

// read reads what the proxy has.
func (s *series) read() reading {
	r := reading{at: now()}
	for i := range r.values {
		r.values[i] = math.NaN()
	}
	busy := cpuOf(os.Getpid())
	elapsed := float64(r.at-s.last) / 1e9 * float64(runtime.NumCPU())
	r.values[share] = max(float64(busy-s.busy), 0) / elapsed // a tick is 10 ms, which are a percent of a second
	s.busy, s.last = busy, r.at
	pid := s.world.process("proxy").cmd.Process.Pid
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return r
	}
	r.values[resident] = float64(number(status, "VmRSS:")) / 1024
	r.values[private] = float64(number(status, "RssAnon:")) / 1024
	open, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	r.values[descriptors] = float64(len(open))
	r.values[servants] = float64(len(children(pid)) + len(children(s.world.process("host").cmd.Process.Pid)))
	if metrics, err := s.world.ask("/metrics"); err == nil { // else a fault is in the way
		r.values[goroutines] = metric(metrics, "go_goroutines")
		r.values[threads] = metric(metrics, "go_threads")
		// The collector begins when the heap is so much greater than what it has left the last time.
		r.values[live] = metric(metrics, "go_memstats_next_gc_bytes") / (1 + metric(metrics, "go_gc_gogc_percent")/100) / (1 << 20)
		r.values[heap] = metric(metrics, "go_memstats_heap_inuse_bytes") / (1 << 20)
	}
	return r
}

// metric returns the value of a metric without labels; NaN if it is not there.
func metric(text []byte, name string) float64 {
	_, rest, _ := strings.Cut(string(text), "\n"+name+" ")
	word, _, _ := strings.Cut(rest, "\n")
	v, err := strconv.ParseFloat(word, 64)
	if err != nil {
		return math.NaN()
	}
	return v
}

// cpuOf returns the CPU time of a process and of all that it started, in ticks: of those that live, and of those that
// their parents have waited for.
func cpuOf(pid int) (ticks int) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // what has ended has none
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 15 {
		return 0
	}
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		n, _ := strconv.Atoi(field)
		ticks += n
	}
	for _, child := range children(pid) {
		ticks += cpuOf(child)
	}
	return ticks
}

// addCalls adds to the readings of a slice what its clients saw, and writes them. A reading is about the time since the
// one before it.
func (s *series) addCalls(events []Event, to int64) error {
	times := callTimes(events)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slices++
	for ; s.written < len(s.all) && s.all[s.written].at < to; s.written++ {
		r := &s.all[s.written]
		from := r.at - int64(time.Second)
		if s.written > 0 {
			from = s.all[s.written-1].at
		}
		if r.active {
			r.addCalls(from, events, times)
		}
		if err := s.write(r); err != nil {
			return err
		}
	}
	s.rows.Flush()
	return s.rows.Error()
}

func (r *reading) addCalls(from int64, events []Event, times []callTime) {
	outcomes := 0
	for _, e := range between(events, from, r.at, func(e Event) int64 { return e.At }) {
		if e.What == Result || e.What == Failed {
			outcomes++
		}
	}
	var all []float64
	for _, t := range between(times, from, r.at, func(t callTime) int64 { return t.at }) {
		all = append(all, t.ms)
	}
	r.values[calls] = float64(outcomes) / (float64(r.at-from) / 1e9)
	r.values[median], r.values[slow] = part(all, 0.5), part(all, 0.99)
}

// between returns what came after a time, until another one, of all that are in order.
func between[T any](all []T, from, to int64, at func(T) int64) []T {
	i := sort.Search(len(all), func(i int) bool { return at(all[i]) > from })
	k := sort.Search(len(all), func(i int) bool { return at(all[i]) > to })
	return all[i:k]
}

func (s *series) write(r *reading) error {
	row := []string{strconv.FormatFloat(60*s.minute(*r), 'f', 1, 64), strconv.Itoa(r.slice), strconv.FormatBool(r.active)}
	for _, v := range r.values {
		row = append(row, strconv.FormatFloat(v, 'f', 2, 64))
	}
	return s.rows.Write(row)
}

// A callTime is when a call ended, and how long it took beyond the time for which its server waits.
type callTime struct {
	at int64
	ms float64
}

// callTimes returns the times of calls, in order. It leaves out calls to which more belongs, and those that a fault may
// have delayed.
func callTimes(events []Event) (all []callTime) {
	sent, disturbed := map[string]Event{}, disturbances(events)
	for _, e := range events {
		switch e.What {
		case Sent:
			sent[e.Of] = e
		case Result:
			var o operation
			began := sent[e.Of]
			_ = json.Unmarshal([]byte(began.Text), &o) // this program wrote it
			plain := o.Server != "" && o.Ask == "" && o.Task == "" && o.CancelAfter == 0 && o.DropAfter == 0
			if plain && !slices.ContainsFunc(disturbed, func(d disturbance) bool { return d.on(o.Server) && d.from < e.At && began.At < d.to }) {
				all = append(all, callTime{e.At, float64(e.At-began.At)/1e6 - float64(o.MS)})
			}
		}
	}
	return all
}

// A disturbance is when a fault may delay calls: until a second after its end.
type disturbance struct {
	what     string
	from, to int64
}

func disturbances(events []Event) (all []disturbance) {
	for _, e := range events {
		switch e.What {
		case Fault:
			all = append(all, disturbance{e.Text, e.At, math.MaxInt64})
		case Over:
			for i := range all {
				if all[i].what == e.Text && all[i].to == math.MaxInt64 {
					all[i].to = e.At + int64(time.Second)
				}
			}
		}
	}
	return all
}

// on reports whether a fault may delay the calls of a server.
func (d disturbance) on(server string) bool {
	switch on := d.what[strings.LastIndexByte(d.what, ' ')+1:]; area(on) {
	case "proxy", "issuer", "clients":
		return true
	case "link":
		return strings.HasPrefix(server, "far")
	default:
		return on == server
	}
}

// part returns the number below which a part of all are; NaN if there are none.
func part(all []float64, p float64) float64 {
	if len(all) == 0 {
		return math.NaN()
	}
	all = slices.Sorted(slices.Values(all))
	return all[min(int(p*float64(len(all))), len(all)-1)]
}
