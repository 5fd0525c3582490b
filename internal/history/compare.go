package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A comparison is the command line of compare.
type comparison struct {
	on     bool
	dir    string // of the other programs; "" for none
	ways   string // only those whose name has this
	atOnce int
}

const (
	// wellFor is how long a way is used without faults, and smallClients how many clients there are at a time.
	wellFor      = 8 * time.Second
	smallClients = 3
)

// A row is what was seen of one way.
type row struct {
	way       way
	failed    error // it does not work at all
	well, ill *sum  // without faults, and under them
}

// compare judges this proxy and others in the smaller world.
func compare(ctx context.Context, o options) error {
	ways := ownWays(o.proxy)
	var missing []string
	if o.compare.dir != "" {
		var peers []way
		peers, missing = peerWays(o.compare.dir)
		ways = append(ways, peers...)
	}
	ways = slices.DeleteFunc(ways, func(y way) bool { return !strings.Contains(y.name(), o.compare.ways) })
	slices.SortStableFunc(ways, func(a, b way) int {
		return cmp.Compare(slices.Index(paths, a.path), slices.Index(paths, b.path))
	})
	fmt.Printf("seed %d for %v\n", o.seed, o.duration)
	rows := make([]row, len(ways))
	var judging sync.WaitGroup
	room := make(chan struct{}, max(1, o.compare.atOnce))
	for i := range ways {
		room <- struct{}{}
		judging.Go(func() {
			rows[i] = o.row(ctx, ways[i])
			rows[i].print(os.Stdout)
			<-room
		})
	}
	judging.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := o.putTables(rows, missing); err != nil {
		return err
	}
	return unpromised(rows, o)
}

// unpromised returns an error if our own proxy broke a promise, or lacks something.
func unpromised(rows []row, o options) error {
	for _, r := range rows {
		if !r.way.ours {
			continue
		}
		if r.failed != nil || len(r.way.lacks) > 0 || len(r.well.anomalies)+len(r.ill.anomalies) > 0 {
			return fmt.Errorf("%s breaks a promise, seed %d; all files are in %s", r.way.name(), o.seed, o.dir)
		}
	}
	return nil
}

// row looks what a way offers, and judges it without faults and under them.
func (o options) row(ctx context.Context, y way) (r row) {
	r.way = y
	if r.way.lacks, r.failed = o.probe(&y); r.failed != nil {
		return r
	}
	if slices.Contains(r.way.lacks, "calls") {
		r.failed = errors.New("calls do not work")
		return r
	}
	if r.well, r.failed = o.small(ctx, &r.way, nil, min(wellFor, o.duration)); r.failed == nil {
		r.ill, r.failed = o.small(ctx, &r.way, r.way.smallFaults(), o.duration)
	}
	return r
}

// small makes one history in the smaller world, and judges it.
func (o options) small(ctx context.Context, y *way, faults []fault, d time.Duration) (*sum, error) {
	dir, err := os.MkdirTemp(o.dir, "run")
	if err != nil {
		return nil, err
	}
	w, err := newSmallWorld(dir, y, o.seed)
	if err != nil {
		return nil, err
	}
	o.faults, o.clients = faults, smallClients
	var samples []sample
	s := &sum{}
	began := time.Now()
	for n := 0; time.Since(began) < d && ctx.Err() == nil; n++ {
		if n > 0 && y.serves() && !w.works(n) {
			s.useless++
			w.end("proxy", syscall.SIGKILL)
			if err := w.begin(); err != nil {
				w.stop()
				return nil, err
			}
		}
		w.patience, w.giveUp = context.WithCancel(context.Background())
		watched, stop := context.WithCancel(ctx)
		a := w.watch(watched)
		o.phase(ctx, w, n, min(phase, d-time.Since(began)))
		stop()
		<-a.done
		s.ended += int(a.ended.Load())
		samples = append(samples, w.rest())
	}
	w.stop()
	left := w.leftovers()
	r, err := w.judge(nil)
	if err != nil {
		return nil, err
	}
	r.anomalies = append(r.anomalies, left...)
	r.anomalies = append(r.anomalies, growing(samples)...)
	if !y.ours { // the reasons in errors are promised by ours alone
		r.anomalies = slices.DeleteFunc(r.anomalies, func(a Anomaly) bool { return a.Rule == 6 })
	}
	s.count(r)
	return s, r.write()
}

// rest takes a sample of a proxy that has no clients, when its servers have had time to end.
func (w *world) rest() (s sample) {
	if !w.way.serves() {
		return s
	}
	last := -1
	for range 8 {
		time.Sleep(500 * time.Millisecond)
		if s.servers = len(w.serverPIDs(w.way.server())); s.servers == last {
			break
		}
		last = s.servers
	}
	s.pid = w.process("proxy").cmd.Process.Pid
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.pid))
	if err != nil {
		return sample{} // it has ended
	}
	s.descriptors = len(open)
	return s
}

// smallRates are what a proxy may not hold more and more of, beside memory: a runtime that collects garbage late has
// more of that for a minute.
var smallRates = []rate{
	{"servers", func(s sample) int { return s.servers }, 3},
	{"descriptors", func(s sample) int { return s.descriptors - 5*s.servers }, 12},
}

// growing judges whether a proxy holds more and more from one quiet moment to the next.
func growing(samples []sample) (found []Anomaly) {
	all := longest(samples)
	for _, rate := range smallRates {
		if more := rate.growth(all); more > rate.tolerance {
			found = append(found, Anomaly{Rule: 8, Of: []string{"proxy " + rate.name}, What: fmt.Sprintf(
				"the proxy holds more and more %s, %d in %d quiet moments: %v", rate.name, more, len(all), all)})
		}
	}
	return found
}

// leftovers judges which processes are left when all has ended, and ends them.
func (w *world) leftovers() (found []Anomaly) {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && len(w.alive()) > 0; time.Sleep(100 * time.Millisecond) {
	}
	for _, line := range w.alive() {
		found = append(found, Anomaly{Rule: 8, What: "a process is left: " + line, Of: []string{line}})
		var pid int
		if _, err := fmt.Sscanf(line, "/proc/%d ", &pid); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return found
}

// alive returns the processes that belong to the smaller world.
func (w *world) alive() []string {
	all := processesOf(w.dir)
	if n := w.links["remote"]; n != nil {
		all = append(all, processesOf(n.address)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
