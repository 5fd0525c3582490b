package main

import (
	"bytes"
	"fmt"
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
	return fmt.Sprintf("%d servers, %d descriptors, %d goroutines, %d KiB", s.servers, s.descriptors, s.goroutines, s.private)
}

// settle takes a sample when sessions that their clients have abandoned have expired, and nothing more ends. The
// connections to remote servers that are kept for reuse, up to 256 each, are cut first.
// The history does not have that as a fault, which would explain what happened before: no client is there.
func (w *world) settle() (s sample, err error) {
	time.Sleep(4 * time.Second)
	for _, on := range remotes {
		if err := w.links[on].cut(); err != nil {
			return s, err
		}
	}
	last := sample{}
	for range 11 {
		time.Sleep(500 * time.Millisecond)
		if s, err = w.sample(); err != nil {
			continue
		}
		last.private = s.private
		if s == last {
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

// A rate is by how much more than its tolerance something has grown over the samples of one proxy.
type rate struct {
	name      string
	of        func(sample) int
	tolerance int // what has grown by less has not
}

// rates are what a proxy may not hold more and more of. Each server that runs has a few descriptors and goroutines,
// and each one that is shared behind the link, which is not counted, has a stream with some more.
// Memory has garbage, of which there is more at one quiet moment than at another.
var rates = []rate{
	{"descriptors", func(s sample) int { return s.descriptors - 5*s.servers }, 8},
	{"goroutines", func(s sample) int { return s.goroutines - 6*s.servers }, 40},
	{"KiB of memory", func(s sample) int { return s.private }, 64 << 10},
}

// growth returns the growth over all samples, of the slope that is the median between any two of them: one sample
// with more than the others, or less, does not change it.
func (r rate) growth(all []sample) int {
	var slopes []float64
	for i := range all {
		for k := range i {
			slopes = append(slopes, float64(r.of(all[i])-r.of(all[k]))/float64(i-k))
		}
	}
	if len(slopes) == 0 {
		return 0
	}
	slices.Sort(slopes)
	return int((slopes[len(slopes)/2] + slopes[(len(slopes)-1)/2]) / 2 * float64(len(all)-1))
}

// longest returns the samples of the proxy that has lived through most phases.
func longest(samples []sample) []sample {
	of := map[int][]sample{}
	for _, s := range samples {
		of[s.pid] = append(of[s.pid], s)
	}
	var most []sample
	for _, all := range of {
		if len(all) > len(most) || len(all) == len(most) && all[0].pid > most[0].pid {
			most = all
		}
	}
	return most
}

// rest says what the proxy held at quiet moments.
func (r *report) rest() string {
	all := longest(r.samples)
	if len(all) < 2 {
		return "at rest: no proxy lived through two quiet moments"
	}
	text := fmt.Sprintf("at rest: %v; %d quiet moments later %v; slopes", all[0], len(all)-1, all[len(all)-1])
	for _, rate := range rates {
		text += fmt.Sprintf(" %+d %s", rate.growth(all)/(len(all)-1), rate.name)
	}
	return text
}

// leftBehind judges what is there when all has ended, and whether the proxy holds more and more.
func leftBehind(dir string, samples []sample) (found []Anomaly) {
	for _, pid := range processesOf(dir) {
		found = append(found, Anomaly{Rule: 8, What: "a process is left: " + pid, Of: []string{pid}})
	}
	all := longest(samples)
	for _, rate := range rates {
		if more := rate.growth(all); more > rate.tolerance {
			what := fmt.Sprintf("the proxy holds more and more %s, %d in %d quiet moments: %v", rate.name, more, len(all), all)
			found = append(found, Anomaly{Rule: 8, What: what, Of: []string{fmt.Sprint("proxy ", all[0].pid)}})
		}
	}
	return found
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
