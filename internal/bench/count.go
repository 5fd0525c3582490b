package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"os"
	"syscall"
	"time"
)

// counterSource is compiled into our proxy and the floor, and waits there to be asked. A proxy
// that was built elsewhere lacks it.
//
//go:embed counter.go.txt
var counterSource []byte

// counterPlace is where it goes in the proxy.
const counterPlace = "cmd/mcp-proxy/bench_counter.go"

// counts are what a process says of its memory: objects and bytes that it has allocated, and
// bytes of objects and stacks that are alive.
type counts struct{ Allocs, Bytes, Live float64 }

// counted returns tgt with a process that counts what it allocates, if it was built here.
func (b programs) counted(tgt target) target {
	tgt.env = append(tgt.env[:len(tgt.env):len(tgt.env)], "BENCH_COUNTS="+b.file("counts"))
	return tgt
}

// counts asks the process that clients reach.
func (b programs) counts(s *session) (c counts, err error) {
	path := b.file("counts")
	os.Remove(path) // of an earlier time
	if err := s.procs[0].cmd.Process.Signal(syscall.SIGUSR2); err != nil {
		return c, err
	}
	if !within(10*time.Second, func() bool { _, err := os.Stat(path); return err == nil }) {
		return c, errors.New("the process does not count")
	}
	text, err := os.ReadFile(path)
	return c, errors.Join(err, json.Unmarshal(text, &c))
}

// allocations returns what tgt allocates for each of many calls at a time.
func (b programs) allocations(tgt target, d time.Duration) (each counts, err error) {
	s, err := b.counted(tgt).begin(probe{})
	if err != nil {
		return each, err
	}
	defer func() { err = s.endAfter(err) }()
	if _, err := s.together(d / 2); err != nil {
		return each, err
	}
	before, err := b.counts(s)
	if err != nil {
		return each, err
	}
	l, err := s.together(d)
	if err != nil {
		return each, err
	}
	after, err := b.counts(s)
	return counts{Allocs: (after.Allocs - before.Allocs) / l.calls, Bytes: (after.Bytes - before.Bytes) / l.calls}, err
}
