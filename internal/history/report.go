package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A sample is what the proxy has when nothing goes on.
type sample struct {
	pid         int
	servers     int // processes that it has started, of which the shared ones and those kept for reuse remain
	descriptors int
	goroutines  int
	private     int // KiB of memory that it shares with nobody
}

func (s sample) String() string {
	return fmt.Sprintf("proxy %d: %d servers, %d descriptors, %d goroutines, %d KiB private",
		s.pid, s.servers, s.descriptors, s.goroutines, s.private)
}

// settle takes a sample when sessions that their clients have abandoned have expired, and nothing more ends.
func (w *world) settle() (s sample, err error) {
	last := sample{}
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(time.Second) {
		if s, err = w.sample(); err != nil {
			continue
		}
		last.private = s.private
		if s == last && time.Until(end) < 11*time.Second {
			break
		}
		last = s
	}
	return s, err
}

func (w *world) sample() (sample, error) {
	s := sample{pid: w.process("proxy").cmd.Process.Pid}
	s.servers = len(children(s.pid))
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.pid))
	if err != nil {
		return s, err
	}
	s.descriptors = len(open)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid))
	if err != nil {
		return s, err
	}
	s.private = number(status, "RssAnon:")
	metrics, err := w.ask("/metrics")
	s.goroutines = number(metrics, "\ngo_goroutines ")
	return s, err
}

// number returns the number after a word; 0 if it is not there.
func number(text []byte, word string) int {
	_, rest, _ := strings.Cut(string(text), word)
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(fields[0])
	return n
}

// A report is a judged history.
type report struct {
	seed      uint64
	dir       string
	events    []Event
	samples   []sample
	anomalies []Anomaly
}

// judge reads all histories of a world that has stopped, judges them, and writes both.
func (w *world) judge(samples []sample) (*report, error) {
	journaled, err := readJournals(w.journals())
	if err != nil {
		return nil, err
	}
	var logs []byte
	for _, name := range []string{"proxy.log", "host.log", "connect.log"} {
		text, err := os.ReadFile(filepath.Join(w.dir, name))
		if err == nil {
			logs = append(logs, text...)
		}
	}
	r := &report{seed: w.seed, dir: w.dir, samples: samples}
	r.events = slices.SortedStableFunc(slices.Values(append(w.rec.take(), journaled...)), inTime)
	r.anomalies = append(judgeHistory(r.events, logs), leftBehind(w.dir, samples)...)
	return r, r.write()
}

// leftBehind judges what is there when all has ended, and how what the proxy has grows from one quiet moment
// to the next.
func leftBehind(dir string, samples []sample) (found []Anomaly) {
	for _, pid := range processesOf(dir) {
		found = append(found, Anomaly{Rule: 8, What: "a process is left: " + pid, Of: []string{pid}})
	}
	of := map[int][]sample{}
	for _, s := range samples {
		of[s.pid] = append(of[s.pid], s)
	}
	for pid, all := range of {
		first, last := all[0], all[len(all)-1]
		more := max(last.servers-first.servers, 0) // kept for reuse
		if last.descriptors > first.descriptors+6*more+8 || last.goroutines > first.goroutines+15*more+20 || grows(all) {
			what := fmt.Sprintf("%v; before: %v", last, first)
			found = append(found, Anomaly{Rule: 8, What: what, Of: []string{fmt.Sprint("proxy ", pid)}})
		}
	}
	return found
}

// grows reports whether memory goes on growing: garbage is freed when there is enough of it, so one quiet moment
// says little.
func grows(all []sample) bool {
	half := len(all) / 2
	if half < 3 {
		return false
	}
	most := func(part []sample) int {
		return slices.MaxFunc(part, func(a, b sample) int { return a.private - b.private }).private
	}
	return most(all[half:]) > 2*most(all[:half])+64<<10
}

// processesOf returns the processes, but this one, that have a directory in their command line.
func processesOf(dir string) (all []string) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		line, err := os.ReadFile(name)
		self := fmt.Sprintf("/proc/%d/cmdline", os.Getpid())
		if err == nil && bytes.Contains(line, []byte(dir+"/")) && name != self {
			all = append(all, fmt.Sprintf("%s %s", filepath.Dir(name), bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return all
}

// write writes the history, and each anomaly with the part of the history that shows it.
func (r *report) write() error {
	var all strings.Builder
	for _, e := range r.events {
		fmt.Fprintln(&all, e)
	}
	if err := os.WriteFile(filepath.Join(r.dir, "history.txt"), []byte(all.String()), 0o600); err != nil {
		return err
	}
	for i, a := range r.anomalies {
		var part strings.Builder
		r.printAnomaly(&part, a)
		if err := os.WriteFile(filepath.Join(r.dir, fmt.Sprintf("anomaly-%d.txt", i+1)), []byte(part.String()), 0o600); err != nil {
			return err
		}
		if a.picture != nil {
			if err := a.picture(filepath.Join(r.dir, fmt.Sprintf("anomaly-%d.html", i+1))); err != nil {
				return err
			}
		}
	}
	return nil
}

// print prints what was done and seen, and the anomalies.
func (r *report) print(to io.Writer) {
	operations, faults := map[string]int{}, map[string]int{}
	for _, e := range r.events {
		switch e.What {
		case Fault:
			if !strings.Contains(e.Text, " failed: ") { // another one was in its way
				faults[e.Text[:max(strings.LastIndexByte(e.Text, ' '), 0)]]++
			}
		case Sent, Result, Failed, Cancel, Question, Progress, Join, Broken, Effect, Cancelled:
			operations[string(e.What)]++
		}
	}
	fmt.Fprintf(to, "seed %d\noperations: %s\nfaults: %s\n", r.seed, counts(operations), counts(faults))
	for _, s := range r.samples {
		fmt.Fprintln(to, s)
	}
	for i, a := range r.anomalies {
		if i == 5 {
			fmt.Fprintf(to, "… and %d more\n", len(r.anomalies)-i)
			break
		}
		r.printAnomaly(to, a)
	}
	if len(r.anomalies) == 0 {
		fmt.Fprintln(to, "no anomaly")
	}
}

func counts(of map[string]int) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		all = append(all, fmt.Sprintf("%d %s", of[name], name))
	}
	return strings.Join(all, ", ")
}
