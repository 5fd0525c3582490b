package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// patience is how long clients wait for outcomes when all faults are over: a link that is dead without
	// saying so is noticed in 3 s here, and what backs off tries again within 10 s. Without faults little is enough.
	patience     = 30 * time.Second
	patienceWell = 5 * time.Second

	// stopping is how long a client, or a process of the proxy, may take to end.
	stopping = 10 * time.Second

	// phase is how long clients and faults go on before everything becomes quiet.
	phase = 8 * time.Second

	// lives is how many phases a proxy lives, so that there are quiet moments to compare: only in the first one of
	// these is it restarted or killed.
	lives = 6
)

type options struct {
	duration time.Duration
	seed     uint64
	clients  int
	faults   []fault
	repeat   int
	plant    string
	soak     time.Duration
	rolling  bool
	proxy    string // its binary
	dir      string
	docs     string // the directory of reliability.md
	output   string // a file with what a soak has printed
	compare  comparison
	replicas bool
	haproxy  string // its binary
}

func main() {
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "server":
		err = runServer(os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == "idle":
		time.Sleep(time.Minute)
	default:
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = check(ctx, parse())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "history:", err)
		os.Exit(1)
	}
}

func parse() options {
	o := options{}
	flag.DurationVar(&o.duration, "duration", time.Minute, "how long clients and faults go on, in all")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of the plans of clients and faults")
	flag.IntVar(&o.clients, "clients", 14, "how many clients there are at a time")
	names := flag.String("faults", "", "do only these `faults`, separated by commas, or none")
	flag.IntVar(&o.repeat, "repeat", 1, "make so many histories of the same plans, with -replicas of the next seeds, and say how many have an anomaly")
	flag.StringVar(&o.plant, "plant", "", "plant a `fault`, or all of them one after the other, which the judge must find: "+
		strings.Join(slices.Sorted(maps.Keys(plants)), ", "))
	flag.DurationVar(&o.soak, "soak", 0, "use one proxy for so long, and judge what it holds more and more of")
	flag.BoolVar(&o.rolling, "rolling", false, "restart a server, the host and the proxy ten times each, and print which calls fail")
	flag.BoolVar(&o.replicas, "replicas", false, "use three proxies behind HAProxy; with -rolling, restart them one after the other, too")
	flag.StringVar(&o.haproxy, "haproxy", "haproxy", "the `binary` of HAProxy")
	flag.StringVar(&o.proxy, "proxy", "", "check this `binary` instead of building this tree's")
	flag.StringVar(&o.dir, "dir", "", "keep all files in this `directory`; else they are kept if there is an anomaly")
	flag.BoolVar(&o.compare.on, "compare", false, "judge this proxy, and others, in a smaller world with one server")
	flag.StringVar(&o.compare.dir, "peers", "", "with -compare, the `directory` of the other proxies, interop/compare")
	flag.StringVar(&o.docs, "docs", "", "write what was found into reliability.md in this `directory`")
	flag.StringVar(&o.output, "output", "", "with -docs, take the output of an earlier soak from this `file` instead of making a run")
	flag.StringVar(&o.compare.ways, "ways", "", "with -compare, only the rows whose name has this `text`")
	flag.IntVar(&o.compare.atOnce, "at-once", 2, "with -compare, how many rows are made at a time")
	flag.Parse()
	if err := o.choose(*names); err != nil {
		fmt.Fprintln(os.Stderr, "history:", err)
		os.Exit(2)
	}
	return o
}

// choose takes the names of the faults that are done.
func (o *options) choose(names string) error {
	all := faults
	if o.replicas {
		all = replicaFaults
	}
	if names == "" {
		o.faults = all
		return nil
	}
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(f fault) bool { return f.name == name })
		switch {
		case i >= 0:
			o.faults = append(o.faults, all[i])
		case name != "none":
			return fmt.Errorf("there is no fault %q", name)
		}
	}
	return nil
}

// check makes a history and judges it, or proves the judge.
func check(ctx context.Context, o options) error {
	kept := o.dir != ""
	var err error
	if o.output != "" {
		return o.putOutput()
	}
	if o.dir, err = directory(o.dir); err != nil {
		return err
	}
	if o.proxy, err = build(o); err != nil {
		return err
	}
	// The lists that proxies keep between runs are this run's alone.
	if err := os.Setenv("XDG_CACHE_HOME", o.dir); err != nil {
		return err
	}
	switch {
	case o.soak > 0:
		return o.endure(ctx)
	case o.rolling && !o.replicas:
		return o.roll(ctx)
	case o.plant == "all":
		return prove(ctx, o)
	case o.compare.on:
		if err := compare(ctx, o); err != nil || kept {
			return err
		}
		return os.RemoveAll(o.dir)
	}
	return o.histories(ctx, kept)
}

// histories makes histories of the same plans, and keeps their files, or those of anomalies.
func (o options) histories(ctx context.Context, kept bool) error {
	fmt.Printf("seed %d for %v\n", o.seed, o.duration)
	failed, all, first := 0, &report{}, o.seed
	for i := range o.repeat {
		if o.replicas {
			o.seed = first + uint64(i)
		}
		r, err := o.run(ctx, o.plant)
		if err != nil {
			return err
		}
		r.print(os.Stdout)
		if len(r.anomalies) > 0 {
			failed++
		}
		all.events, all.anomalies = append(all.events, r.events...), append(all.anomalies, r.anomalies...)
	}
	text := listing(fmt.Sprintf("%d × %v, seed %d\n%s", o.repeat, o.duration, first, all.sum()))
	if o.replicas && o.rolling {
		table, r, err := o.rollReplicas(ctx)
		if err != nil {
			return err
		}
		r.print(os.Stdout)
		fmt.Print(table)
		if len(r.anomalies) > 0 {
			failed++
		}
		text += "\nRestarted one after another: " + promised(r.anomalies) + "." + table
	}
	if o.docs != "" {
		at := ofHistories
		if o.replicas {
			at = ofReplicas
		}
		if err := at.put(o.docs, text); err != nil {
			return err
		}
	}
	switch {
	case failed > 0:
		return fmt.Errorf("%d of %d histories have an anomaly, seed %d; all files are in %s", failed, o.repeat, first, o.dir)
	case !kept:
		return os.RemoveAll(o.dir)
	}
	return nil
}

func directory(dir string) (string, error) {
	if dir == "" {
		return os.MkdirTemp("", "history")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o700)
}

// build returns the proxy's binary.
func build(o options) (string, error) {
	if o.proxy != "" {
		return filepath.Abs(o.proxy)
	}
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	binary := filepath.Join(o.dir, "mcp-proxy")
	cmd := exec.Command("go", "build", "-o", binary, "./cmd/mcp-proxy")
	cmd.Dir, cmd.Stderr = filepath.Join(string(bytes.TrimSpace(root)), "..", ".."), os.Stderr
	return binary, cmd.Run()
}

// run makes one history in a directory of its own, and judges it.
func (o options) run(ctx context.Context, planted string) (*report, error) {
	var p *plant
	if planted != "" {
		if o.plants()[planted] == 0 {
			return nil, fmt.Errorf("there is no fault %q to plant", planted)
		}
		p = &plant{name: planted}
	}
	dir, err := os.MkdirTemp(o.dir, "run")
	if err != nil {
		return nil, err
	}
	w, err := o.world(dir, p)
	if err != nil {
		return nil, errors.Join(err, fmt.Errorf("see %s", dir))
	}
	began := time.Now()
	var samples []sample
	for n := 0; time.Since(began) < o.duration && ctx.Err() == nil; n++ {
		w.patience, w.giveUp = context.WithCancel(context.Background())
		old := w.process("proxy")
		o.phase(ctx, w, n, min(phase, o.duration-time.Since(began)))
		if o.replicas {
			if err := w.isWhole(); err != nil {
				return nil, errors.Join(err, fmt.Errorf("see %s", dir))
			}
			continue
		}
		s, err := w.settle()
		if err != nil {
			return nil, err
		}
		if w.process("proxy") == old { // a new one has not yet what it keeps
			samples = append(samples, s)
		}
	}
	w.stop()
	return w.judge(samples)
}

// world starts the world of the options.
func (o options) world(dir string, p *plant) (*world, error) {
	if o.replicas {
		return newReplicas(dir, o, p)
	}
	return newWorld(dir, o.proxy, o.seed, p, "GOMEMLIMIT=96MiB") // what a burst leaves is freed, so that samples can be compared
}

// phase lets clients and faults go on for a time, and returns when the clients have left.
func (o options) phase(ctx context.Context, w *world, n int, d time.Duration) {
	ctx, stop := context.WithTimeout(ctx, d)
	defer stop()
	patient := patienceWell
	var clients sync.WaitGroup
	for i := range o.clients {
		s := &slot{w, n, i}
		clients.Go(func() { s.run(ctx) })
	}
	if some := o.inPhase(n); len(some) > 0 {
		patient = patience
		(&nemesis{world: w, random: rand.New(rand.NewPCG(o.seed, uint64(n))), faults: some}).run(ctx)
	} else {
		<-ctx.Done()
	}
	if w.way != nil {
		patient = patienceSmall
	}
	w.rec.add("nemesis", Quiet, "", patient.String())
	late := time.AfterFunc(patient, w.giveUp)
	defer late.Stop()
	defer w.giveUp()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		clients.Wait()
	}()
	select {
	case <-gone:
	case <-time.After(patient + stopping):
		w.rec.hang()
	}
}

// inPhase returns the faults that are done in a phase. If all are on the proxy's life, all are done.
// Replicas have none in the first phase, and crashes in each second one.
func (o options) inPhase(n int) []fault {
	if o.replicas {
		return slices.DeleteFunc(slices.Clone(o.faults), func(f fault) bool {
			return n == 0 || n%2 == 1 && len(o.faults) > 1 && slices.Contains(crashes, f.name)
		})
	}
	others := slices.DeleteFunc(slices.Clone(o.faults), func(f fault) bool {
		return f.name == "restart proxy" || f.name == "kill proxy"
	})
	if n%lives == 0 || len(others) == 0 {
		return o.faults
	}
	return others
}
