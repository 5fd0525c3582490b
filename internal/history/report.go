package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

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
		if err := os.WriteFile(r.file(i, "txt"), []byte(part.String()), 0o600); err != nil {
			return err
		}
		if a.picture != nil {
			if err := a.picture(r.file(i, "html")); err != nil {
				return err
			}
		}
	}
	return nil
}

// file returns where an anomaly is written: its part of the history, or its picture.
func (r *report) file(anomaly int, kind string) string {
	return filepath.Join(r.dir, fmt.Sprintf("anomaly-%d.%s", anomaly+1, kind))
}

// print prints what was done and seen, and the anomalies.
func (r *report) print(to io.Writer) {
	r.operations(to)
	r.faults(to)
	fmt.Fprintln(to, r.rest())
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

// operations prints a table of what clients asked for, and what became of it.
func (r *report) operations(to io.Writer) {
	kinds, outcomes := map[string]string{}, map[string]map[string]int{}
	clients := 0
	count := func(nonce, outcome string) {
		kind := kinds[nonce]
		if outcomes[kind] == nil {
			outcomes[kind] = map[string]int{}
		}
		outcomes[kind][outcome]++
	}
	for _, e := range r.events {
		switch e.What {
		case Join:
			clients++
		case Sent:
			kinds[e.Of] = kindOf(e.Text)
			count(e.Of, "sent")
		case Result, Failed:
			count(e.Of, string(e.What))
		case Cancel:
			if e.Text == "" {
				count(e.Of, string(e.What))
			}
		}
	}
	columns := []string{"sent", string(Result), string(Failed), string(Cancel)}
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "%d clients\t%s\t\n", clients, strings.Join(columns, "\t"))
	for _, kind := range slices.Sorted(maps.Keys(outcomes)) {
		fmt.Fprint(table, kind)
		for _, c := range columns {
			fmt.Fprintf(table, "\t%d", outcomes[kind][c])
		}
		fmt.Fprintln(table, "\t")
	}
	_ = table.Flush() // to has no errors that matter
}

// kindOf returns what an operation is for, in a word.
func kindOf(text string) string {
	var o operation
	_ = json.Unmarshal([]byte(text), &o) // this program wrote it
	switch {
	case o.Server == "":
		return "list"
	case o.CancelAfter > 0:
		return "cancelled call"
	case o.Ask != "":
		return "question"
	case o.Progress > 0:
		return "progress"
	case o.Do == "touch":
		return "update"
	case o.Do != "":
		return "register"
	}
	return "call"
}

// faults prints how often each was done.
func (r *report) faults(to io.Writer) {
	done := map[string]int{}
	for _, e := range r.events {
		if e.What == Fault && !strings.Contains(e.Text, " failed: ") { // another one was in its way
			done[e.Text[:max(strings.LastIndexByte(e.Text, ' '), 0)]]++
		}
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(done)) {
		all = append(all, fmt.Sprintf("%d %s", done[name], name))
	}
	fmt.Fprintln(to, "faults:", cmp.Or(strings.Join(all, ", "), "none"))
}
