package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// third is the share of the machine that a soak uses: of the CPU time of all cores, by this program, the proxy and
	// everything that they have started. The pauses of clients are made longer or shorter until it is so.
	third = 1. / 3

	// slowest is how long clients may pause at most: with longer pauses sessions would expire between two operations.
	slowest = 2 * time.Second

	// gathers is how long after the end of a slice its last errors may come into a log.
	gathers = 6 * time.Second
)

// A soak uses one proxy for long, under faults that leave it alive. It goes on in slices, between which everything
// becomes quiet: each is a history that is judged by itself and then dropped, with its journals and logs, so that
// neither memory nor the disk limits how long a soak is. What a server does for a call of an earlier slice, seconds
// after that has ended, is not judged.
//
// A quantity that must not grow is judged by the slope over the medians of the slices: see trend.
type soak struct {
	options
	*world
	series  *series
	tally   *tally
	quiet   []moment // once a slice
	faulted []Event  // the faults of the last minute, which may explain what happens later

	output bytes.Buffer
	to     io.Writer // the output and stdout

	judging   sync.WaitGroup // one slice, while the next one goes on
	mu        sync.Mutex     // guards the field below
	anomalies []Anomaly
}

// A moment is when nothing goes on, and what the proxy has then.
type moment struct {
	sample
	at float64 // in minutes
}

// endure makes a soak, and fails if anything is an anomaly.
func (o options) endure(ctx context.Context) error {
	o.faults = slices.DeleteFunc(slices.Clone(o.faults), func(f fault) bool {
		return f.name == "restart proxy" || f.name == "kill proxy"
	})
	dir, err := os.MkdirTemp(o.dir, "soak")
	if err != nil {
		return err
	}
	w, err := newWorld(dir, o.proxy, o.seed, nil)
	if err != nil {
		return errors.Join(err, fmt.Errorf("see %s", dir))
	}
	w.hurry = 5 * time.Second
	s := &soak{options: o, world: w, tally: newTally()}
	s.to = io.MultiWriter(os.Stdout, &s.output)
	if s.series, err = newSeries(w); err != nil {
		return err
	}
	fmt.Fprintf(s.to, "soak of %v, seed %d, slices of %v\n", o.soak, o.seed, s.slice())
	err = s.run(ctx)
	w.stop()
	s.judging.Wait()
	if err := errors.Join(err, s.end()); err != nil {
		return err
	}
	if len(s.anomalies) > 0 {
		return fmt.Errorf("%d anomalies, seed %d; all files are in %s", len(s.anomalies), o.seed, dir)
	}
	return nil
}

// slice is how long one is: a minute, or less if there would be few.
func (s *soak) slice() time.Duration { return min(max(s.soak/20, phase), time.Minute) }

func (s *soak) run(ctx context.Context) error {
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer stop()
	watch.Go(func() { s.series.watch(watching) })
	began := time.Now()
	for n := 0; time.Since(began) < s.soak && ctx.Err() == nil; n++ {
		s.patience, s.giveUp = context.WithCancel(context.Background())
		s.series.active.Store(true)
		s.phase(ctx, s.world, n, min(s.slice(), s.soak-time.Since(began)))
		s.series.active.Store(false)
		ended := time.Now()
		for _, on := range remotes { // which keep all tasks of a slice
			if err := s.restart(on, syscall.SIGKILL); err != nil {
				return err
			}
		}
		rest, err := s.settle()
		if err != nil {
			return fmt.Errorf("the proxy did not answer: %w", err)
		}
		s.quiet = append(s.quiet, moment{rest, time.Since(began).Minutes()})
		time.Sleep(time.Until(ended.Add(gathers)))
		if err := s.cutOff(n); err != nil {
			return err
		}
		select {
		case <-s.process("proxy").done:
			return errors.New("the proxy has ended")
		default:
		}
	}
	return nil
}

// cutOff takes the history of a slice, and judges it while the next one goes on.
func (s *soak) cutOff(n int) error {
	to := now()
	journaled, err := readJournals(s.journals())
	if err != nil {
		return err
	}
	events := slices.DeleteFunc(append(s.rec.drain(), journaled...), func(e Event) bool { return isLate(e, n) })
	slices.SortStableFunc(events, inTime)
	logs, err := s.rotate()
	if err != nil {
		return err
	}
	s.judging.Wait()
	r := &report{seed: s.world.seed, dir: filepath.Join(s.world.dir, fmt.Sprintf("slice-%d", n)), events: events}
	earlier := s.faulted
	s.faulted = slices.DeleteFunc(slices.Concat(earlier, events), func(e Event) bool {
		return e.What != Fault && e.What != Over || e.At < now()-int64(time.Minute)
	})
	s.judging.Go(func() {
		s.tally.count(events)
		s.report(r, earlier, logs)
		if err := s.series.addCalls(events, to); err != nil {
			fmt.Println(err)
		}
	})
	return nil
}

// report judges a slice, and keeps it if there is an anomaly.
func (s *soak) report(r *report, earlier []Event, logs []byte) {
	r.anomalies = judgeHistory(slices.Concat(earlier, r.events), logs)
	if len(r.anomalies) == 0 {
		return
	}
	s.add(r.anomalies)
	fmt.Printf("anomalies in %s:\n", r.dir)
	for _, a := range r.anomalies[:min(len(r.anomalies), 5)] {
		r.printAnomaly(os.Stdout, a)
	}
	err := os.MkdirAll(r.dir, 0o700)
	err = errors.Join(err, r.write(), os.WriteFile(filepath.Join(r.dir, "logs.txt"), logs, 0o600))
	if err != nil {
		fmt.Println("keep it:", err)
	}
}

func (s *soak) add(anomalies []Anomaly) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.anomalies = append(s.anomalies, anomalies...)
}

// isLate reports whether an event belongs to a client of an earlier slice: the name of a client begins with the
// number of its slice, and so does what it calls an operation.
func isLate(e Event, slice int) bool {
	for _, name := range []string{e.By, e.Of} {
		rest, isClient := strings.CutPrefix(name, "c")
		number, _, dotted := strings.Cut(rest, ".")
		if n, err := strconv.Atoi(number); isClient && dotted && err == nil && n != slice {
			return true
		}
	}
	return false
}

// rotate empties the journals and logs, whose writers append to them, and the registers. It returns the logs.
func (s *soak) rotate() (logs []byte, err error) {
	running := strings.Join(processesOf(s.world.dir), "\n")
	journals, _ := filepath.Glob(filepath.Join(s.journals(), "*.jsonl"))
	for _, name := range journals {
		if !strings.Contains(running, "/proc/"+writerOf(name)+" ") {
			err = errors.Join(err, os.Remove(name))
			continue
		}
		err = errors.Join(err, os.Truncate(name, 0))
	}
	registers, _ := filepath.Glob(filepath.Join(s.journals(), "*.register"))
	for _, name := range registers {
		err = errors.Join(err, os.Remove(name))
	}
	for _, name := range []string{"proxy.log", "host.log", "connect.log"} {
		name = filepath.Join(s.world.dir, name)
		text, failed := os.ReadFile(name)
		if failed != nil {
			continue // nobody has written it yet
		}
		logs = append(logs, text...)
		err = errors.Join(err, os.Truncate(name, 0))
	}
	return logs, err
}

// end judges what is left, and what has grown, and draws it.
func (s *soak) end() error {
	s.tally.print(s.to)
	found := append(leftBehind(s.world.dir, nil), s.series.judge(s.to, s.quiet)...)
	for _, a := range found {
		fmt.Fprintf(s.to, "anomaly: promise %d: %s\n", a.Rule, a.What)
	}
	s.add(found)
	picture := filepath.Join(s.world.dir, "soak.svg")
	fmt.Fprintf(s.to, "%s\nsamples: %s, picture: %s\n", promised(s.anomalies), s.series.file.Name(), picture)
	err := errors.Join(s.series.file.Close(), s.series.draw(picture))
	if err != nil || s.docs == "" {
		return err
	}
	return putSoak(s.docs, s.output.Bytes())
}
