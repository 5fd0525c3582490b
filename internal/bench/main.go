package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// firstProxy is the index in programs.targets of the first proxy.
const firstProxy = 2

// options are the command line.
type options struct {
	rounds int
	part   time.Duration // how long each part of a sample lasts
	proxy  string
	crowds []crowd
	quick  bool
	only   bool   // nothing but the crowds
	record bool   // nothing but what the repository records
	light  string // nothing but parts of the table of goals
	moving int    // nothing but so many sessions on three replicas
	lazy   bool   // nothing but upstreams that start when they are needed

	// Nothing but pairs: with this other binary, or with what the proxy does besides.
	against string
	extras  bool
	pairs   []string // these alone; nil: all

	peers   comparison // nothing but how others do
	profile profiler
}

func main() {
	if err := run(parse()); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse() options {
	o := options{crowds: largest}
	flag.BoolVar(&o.quick, "quick", false, "a smoke test of half a minute: 3 short rounds")
	flag.BoolVar(&o.lazy, "lazy", false, "measure only upstreams that start when they are needed")
	flag.StringVar(&o.light, "light", "", "measure only what the proxy costs beside floors: all, or some of the `parts` cpu,http,rare,link,big,memory,crowd,waiting,size,hooks; record has what CI checks")
	flag.IntVar(&o.moving, "replicas", 0, "measure only what becomes of that `number` of sessions when one of three replicas is restarted")
	flag.BoolVar(&o.record, "record", false, "only write again what CI checks (record.json), which must not grow")
	flag.IntVar(&o.rounds, "rounds", 9, "`number` of rounds, of which the medians are reported")
	flag.DurationVar(&o.part, "part", 700*time.Millisecond, "how long one measurement of a round lasts")
	flag.StringVar(&o.proxy, "proxy", "", "measure this `binary` instead of building this tree's")
	flag.StringVar(&o.profile.dir, "profile", "", "profile the proxy into this `directory` instead of measuring")
	flag.Func("crowd", "measure only crowds, of `CLIENTSxUPSTREAMS`; may be repeated", o.addCrowd)
	flag.StringVar(&o.against, "against", "", "compare only the proxy with this other `binary`, in pairs: calls per second, and CPU for each")
	flag.BoolVar(&o.extras, "extras", false, "compare only, in pairs, what tokens, policies, metrics and taps cost; arguments choose some of the pairs")
	flag.StringVar(&o.peers.what, "compare", "", "compare only `calls`, faults, or all with other proxies")
	flag.StringVar(&o.peers.dir, "peers", "", "the `directory` of the other proxies, interop/compare; none if it is not given")
	flag.StringVar(&o.peers.docs, "docs", "", "with -compare, the `directory` of the documents that the tables go into")
	flag.Parse()
	o.pairs = flag.Args()
	if o.quick {
		o.rounds, o.part = 3, 150*time.Millisecond
		if !o.only {
			o.crowds = small
		}
	}
	return o
}

func (o *options) addCrowd(text string) error {
	c, err := parseCrowd(text)
	if !o.only {
		o.only, o.crowds = true, nil
	}
	o.crowds = append(o.crowds, c)
	return err
}

func run(o options) error {
	dir, err := os.MkdirTemp("", "mcp-proxy-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	cacheHome = filepath.Join(dir, "cache")
	programs, err := build(dir, o.proxy, o.profile)
	if err != nil {
		return err
	}
	if o.peers.what != "" {
		return compare(programs, o, pins{o.peers.dir})
	}
	if o.against != "" || o.extras {
		pairs, err := programs.pairs(o)
		if err != nil {
			return err
		}
		return comparePairs(os.Stdout, pairs, o)
	}
	if o.record || o.light == "record" {
		return judge(os.Stdout, programs, o)
	}
	if o.light != "" {
		return light(os.Stdout, programs, o.light, o)
	}
	if o.moving > 0 {
		return moving(os.Stdout, programs, o.moving)
	}
	if o.lazy {
		return lazinesses(os.Stdout, programs, o)
	}
	if o.only {
		return visits(os.Stdout, programs, o.crowds, o.profile)
	}
	targets := programs.targets()
	if o.profile.dir != "" {
		return profile(o.profile, targets[firstProxy:], programs.groups(), o.pairs)
	}

	medians, err := rounds(targets, o)
	if err != nil {
		return err
	}
	fmt.Printf("calls, medians of %d rounds\n", o.rounds)
	if err := printCalls(os.Stdout, targets, medians); err != nil {
		return err
	}
	return neighbours(programs, o)
}

// neighbours prints what clients cost each other, and the proxy.
func neighbours(b programs, o options) error {
	st, err := stalls(b.webSocket(linked, b.host(alone, b.socket())...), o)
	if err != nil {
		return fmt.Errorf("stall a stream: %w", err)
	}
	fmt.Println()
	if err := printStall(os.Stdout, st); err != nil {
		return err
	}
	weights, err := weighAll(b.groups(), o.profile)
	if err != nil {
		return err
	}
	fmt.Println()
	if err := printWeights(os.Stdout, b.groups(), weights); err != nil {
		return err
	}
	fmt.Println()
	if err := lazinesses(os.Stdout, b, o); err != nil {
		return err
	}
	if err := visits(os.Stdout, b, o.crowds, o.profile); err != nil || !o.quick || o.proxy != "" {
		return err
	}
	fmt.Println()
	return judge(os.Stdout, b, o)
}

// rounds measures each target once in each round.
func rounds(targets []target, o options) (map[string]sample, error) {
	samples := map[string][]sample{}
	for range o.rounds {
		for _, tgt := range targets {
			s, err := measure(tgt, o.part)
			if err != nil {
				return nil, fmt.Errorf("measure %s: %w", tgt.name, err)
			}
			samples[tgt.name] = append(samples[tgt.name], s)
		}
	}
	medians := map[string]sample{}
	for name, s := range samples {
		medians[name] = median(s)
	}
	return medians, nil
}

// profile prints where time goes under load, and leaves heap profiles of a
// proxy with many clients beside the others. If names is not empty, it profiles
// only the targets that it names, and no memory.
func profile(pr profiler, targets []target, groups []group, names []string) error {
	if err := os.MkdirAll(pr.dir, 0o755); err != nil {
		return err
	}
	if len(names) > 0 {
		for _, name := range names {
			if !slices.ContainsFunc(targets, func(t target) bool { return t.name == name }) {
				return fmt.Errorf("-profile: there is no target %q", name)
			}
		}
		targets = slices.DeleteFunc(targets, func(t target) bool { return !slices.Contains(names, t.name) })
		return pr.report(os.Stdout, targets, 5*time.Second)
	}
	if err := pr.report(os.Stdout, targets, 5*time.Second); err != nil {
		return err
	}
	_, err := weighAll(groups, pr)
	return err
}
