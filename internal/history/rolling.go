package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	restarts    = 10              // of each part
	rollingLong = 5 * time.Minute // at most, for one part

	// restartGap is longer than the 10 s for which a server or a link must live so that its next end is no crash loop,
	// with pauses that grow.
	restartGap = 11 * time.Second

	// rollingPause is how long clients pause at most between two calls, also after one that failed at once.
	rollingPause = 200 * time.Millisecond
)

// A rolled part is what is restarted while all kinds of clients make short calls, and the servers whose calls that may hit.
type rolled struct {
	name, on string
	fault    string // its name for the judge
	servers  []string
	restart  func(w *world) error
	gap      time.Duration // between two restarts; 0 for restartGap
	kinds    []string      // of the clients that are counted; nil for all
}

// rolledReplicas are all replicas, one after the other. Each kind of front has a row of its own.
var rolledReplicas = rolled{name: "three replicas", on: "replicas", fault: "roll proxies", servers: replicaServers,
	restart: func(w *world) error { return roll(w, "", 0) }, gap: 2 * time.Second}

// fronts are the fronts that a restart of a replica treats alike.
var fronts = []struct {
	name  string
	kinds []string
}{
	{"Streamable HTTP", []string{"HTTP", "modern HTTP"}},
	{"WebSocket, `/sse`", []string{"WebSocket", "modern WebSocket", "SSE"}},
}

var parts = []rolled{
	{name: "server", on: "common", fault: "kill server", servers: []string{"common"}, restart: func(w *world) error {
		w.signalServer("common", syscall.SIGTERM)
		return nil
	}},
	{name: "host", on: "host", fault: "restart host", servers: []string{"far", "far-common"}, restart: func(w *world) error {
		return w.restart("host", syscall.SIGTERM)
	}},
	{name: "proxy", on: "proxy", fault: "restart proxy", servers: servers, restart: func(w *world) error {
		return w.restart("proxy", syscall.SIGTERM)
	}},
}

// roll restarts one part after the other by SIGTERM, and prints which calls failed. It fails if there is an anomaly.
func (o options) roll(ctx context.Context) error {
	dir, err := os.MkdirTemp(o.dir, "rolling")
	if err != nil {
		return err
	}
	w, err := newWorld(dir, o.proxy, o.seed, nil)
	if err != nil {
		return errors.Join(err, fmt.Errorf("see %s", dir))
	}
	var rows []string
	for n, p := range parts {
		before := len(w.rec.take())
		o.rollPart(ctx, w, n, &p)
		rows = append(rows, p.row(w.rec.take()[before:]))
	}
	w.stop()
	r, err := w.judge(nil)
	if err != nil {
		return err
	}
	r.print(os.Stdout)
	var table strings.Builder
	printRows(&table, rows, "each", restartGap)
	fmt.Print(table.String())
	if o.docs != "" {
		if err := ofRolling.put(o.docs, fmt.Sprintf("Seed %d, %s.%s", o.seed, promised(r.anomalies), table.String())); err != nil {
			return err
		}
	}
	if len(r.anomalies) > 0 {
		return fmt.Errorf("%d anomalies, seed %d; all files are in %s", len(r.anomalies), o.seed, dir)
	}
	return nil
}

func (p *rolled) roll(ctx context.Context, w *world) error {
	gap := cmp.Or(p.gap, restartGap)
	for i := range restarts {
		sleep(ctx, gap)
		if i > 0 { // the nemesis says so of the first one
			w.rec.add("nemesis", Fault, "", p.fault+" "+p.on)
		}
		if err := p.restart(w); err != nil {
			return err
		}
	}
	sleep(ctx, gap)
	return nil
}

// rollReplicas restarts all replicas one after the other, ten times, and returns a table of what became of calls.
func (o options) rollReplicas(ctx context.Context) (table string, r *report, err error) {
	dir, err := os.MkdirTemp(o.dir, "rolling")
	if err != nil {
		return "", nil, err
	}
	w, err := newReplicas(dir, o, nil)
	if err != nil {
		return "", nil, errors.Join(err, fmt.Errorf("see %s", dir))
	}
	o.rollPart(ctx, w, 1, &rolledReplicas)
	w.stop()
	if r, err = w.judge(nil); err != nil {
		return "", nil, err
	}
	var rows []string
	for _, front := range fronts {
		p := rolledReplicas
		p.name, p.kinds = p.name+", "+front.name, front.kinds
		rows = append(rows, p.row(r.events))
	}
	var text strings.Builder
	printRows(&text, rows, "of all three", rolledReplicas.gap)
	return text.String(), r, nil
}

// rollPart lets clients stay and make short calls, while a part is restarted.
func (o options) rollPart(ctx context.Context, w *world, n int, p *rolled) {
	w.plain, w.least, w.most = true, 1<<20, 1<<20+1 // a client stays until its connection ends
	w.pause.Store(int64(rollingPause))
	w.patience, w.giveUp = context.WithCancel(context.Background())
	rolling, stop := context.WithCancel(ctx)
	defer stop()
	o.faults = []fault{{p.fault, []string{p.on}, func(w *world, _ string, _ time.Duration) error {
		defer stop()
		return p.roll(rolling, w)
	}, 0}}
	o.phase(rolling, w, n, rollingLong)
}

func printRows(to io.Writer, rows []string, of string, gap time.Duration) {
	fmt.Fprintf(to, "\n%d restarts %s by SIGTERM, %v apart:\n\n", restarts, of, gap)
	fmt.Fprintln(to, "| restarted | calls that it can hit | results | `not_sent` | `in_flight` | other failures | clients whose connection ended |")
	fmt.Fprintln(to, "|---|---|---|---|---|---|---|")
	for _, row := range rows {
		fmt.Fprintln(to, row)
	}
}

// row says in a row of a table what became of the calls that a restart can hit. A call without an outcome is one of a
// client whose connection ended.
func (p *rolled) row(events []Event) string {
	open, results, phases, others, kinds := map[string]bool{}, 0, map[string]int{}, map[string]int{}, map[string]int{}
	kindOfClient, sent, broken := map[string]string{}, 0, 0
	for _, e := range events {
		if e.What == Join {
			kindOfClient[e.By] = e.Text
		}
		if kind := kindOfClient[e.By]; kind != "" && p.kinds != nil && !slices.Contains(p.kinds, kind) {
			continue
		}
		switch e.What {
		case Sent:
			if slices.ContainsFunc(p.servers, func(s string) bool { return strings.Contains(e.Text, `"server":"`+s+`"`) }) {
				open[e.Of], sent = true, sent+1
			}
		case Result:
			if open[e.Of] {
				delete(open, e.Of)
				results++
			}
		case Failed:
			if !open[e.Of] {
				continue
			}
			delete(open, e.Of)
			if f := readFailure(e); f.Data.Phase != "" {
				phases[f.Data.Phase]++
			} else {
				others[f.Message]++
			}
		case Broken:
			kinds[kindOfClient[e.By]]++
			broken++
		}
	}
	if len(open) > 0 {
		others["none, the connection ended"] = len(open)
	}
	return fmt.Sprintf("| %s | %d | %d | %d | %d | %s | %d%s |", p.name, sent, results, phases["not_sent"], phases["in_flight"],
		counted(others), broken, strings.TrimRight(": "+counted(kinds), ": "))
}

// counted returns counts in words.
func counted(counts map[string]int) string {
	var all []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%d %s", counts[what], what))
	}
	return strings.Join(all, ", ")
}
