package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// profilerSource is compiled into the proxy for -profile. The proxy itself has
// no such thing.
//
//go:embed profiler.go.txt
var profilerSource []byte

// A profiler says where the proxy's time and memory go; the zero profiler does
// nothing.
type profiler struct {
	dir string // receives NAME.cpu, NAME.heap and NAME.goroutine of each probe
}

// A probe is one profiled process; the zero probe is not profiled.
type probe struct {
	path  string // without extension
	small bool   // small objects count too, at the expense of speed
}

func (pr profiler) probe(name string) probe {
	if pr.dir == "" {
		return probe{}
	}
	return probe{path: filepath.Join(pr.dir, name)}
}

// ofFar returns pr for the target's far process.
func (pr probe) ofFar() probe {
	if pr.path != "" {
		pr.path += "-far"
	}
	return pr
}

// ofMemory returns pr for a process whose memory matters and not its time.
func (pr probe) ofMemory() probe {
	pr.small = true
	return pr
}

// env is what a process must find in its environment to be profiled.
func (pr probe) env() []string {
	if pr.path == "" {
		return nil
	}
	env := []string{"BENCH_PROFILE=" + pr.path}
	if pr.small {
		env = append(env, "BENCH_PROFILE_SMALL=1")
	}
	return env
}

// of returns the probes of tgt's processes; a far one may be no proxy.
func (pr probe) of(tgt target) []probe {
	if tgt.far != nil && tgt.far[0] == tgt.argv[0] {
		return []probe{pr, pr.ofFar()}
	}
	return []probe{pr}
}

// collect has tgt's processes write their profiles. They are not profiled any
// more afterwards.
func (pr probe) collect(tgt target) error {
	if pr.path == "" {
		return nil
	}
	for _, each := range pr.of(tgt) {
		if err := each.write(); err != nil {
			return err
		}
	}
	return nil
}

// write has one process write its profiles.
func (pr probe) write() error {
	os.Remove(pr.path + ".heap") // of an earlier run; the last to be written
	if err := os.WriteFile(pr.path+".stop", nil, 0o600); err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(pr.path + ".heap"); err == nil {
			return nil
		}
	}
	return fmt.Errorf("no profile came: %s", pr.path)
}

// report profiles the proxies among targets under both kinds of load, each for
// d, and writes to w where their time goes.
func (pr profiler) report(w io.Writer, targets []target, d time.Duration) error {
	loads := []struct {
		name string
		run  func(s *session) error
	}{
		{"one", func(s *session) error { _, err := s.oneByOne(0, d); return err }},
		{"many", func(s *session) error { _, err := s.together(d); return err }},
	}
	for _, tgt := range targets {
		for _, load := range loads {
			probe := pr.probe(strings.ReplaceAll(tgt.name, " ", "-") + "-" + load.name)
			if err := probe.load(tgt, load.run); err != nil {
				return fmt.Errorf("profile %s: %w", tgt.name, err)
			}
			for _, each := range probe.of(tgt) {
				if err := each.print(w); err != nil {
					return fmt.Errorf("read profile: %w", err)
				}
			}
		}
	}
	return nil
}

// print writes to w where the time of one process went.
func (pr probe) print(w io.Writer) error {
	fmt.Fprintf(w, "\n%s.cpu\n", pr.path)
	top := exec.Command("go", "tool", "pprof", "-top", "-cum", "-nodecount=50", pr.path+".cpu")
	top.Stdout = w
	return top.Run()
}

// load profiles one process of tgt under one load.
func (pr probe) load(tgt target, run func(*session) error) error {
	s, err := tgt.begin(pr)
	if err != nil {
		return err
	}
	err = run(s)
	if err == nil {
		err = pr.collect(tgt)
	}
	return errors.Join(s.explain(err), s.end())
}
