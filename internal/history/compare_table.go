package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A sum is a judged history in numbers.
type sum struct {
	clients, operations, results, faults int
	ended                                int // how often the proxy ended
	useless                              int // how often no new client got a result when all was over
	anomalies                            map[string]int
}

// broken are the names of what a history can show, in the order of the promises.
var broken = []string{"no answer", "answered twice", "waits in vain", "sessions ended", "wrong execution", "another's message",
	"wrong cancellation", "progress or update missing, late or out of order", "error without a reason", "stale read",
	"process left", "more and more servers or descriptors"}

// count sums up a report.
func (s *sum) count(r *report) {
	outcomes, used, hung := map[string]int{}, map[string]bool{}, map[string]bool{}
	for _, e := range r.events {
		switch e.What {
		case Join:
			s.clients++
		case Sent:
			s.operations++
			used[e.By] = true
		case Result:
			s.results++
			outcomes[e.Of]++
		case Failed:
			outcomes[e.Of]++
		case Hangs:
			hung[e.By] = true
		case Fault:
			if !strings.Contains(e.Text, " failed: ") {
				s.faults++
			}
		}
	}
	s.anomalies = map[string]int{}
	for _, a := range r.anomalies {
		if name := nameOf(a, outcomes, used, hung); name != "" {
			s.anomalies[name]++
		}
	}
}

// nameOf returns which of broken an anomaly is. It is none if a client could not connect, which is told by how often the
// proxy ended, or only looked whether the proxy works.
func nameOf(a Anomaly, outcomes map[string]int, used, hung map[string]bool) string {
	of := ""
	if len(a.Of) > 0 {
		of = a.Of[0]
	}
	switch {
	case strings.HasPrefix(of, checking):
		return ""
	case a.Rule == 8 && strings.HasPrefix(of, "proxy "):
		return "more and more servers or descriptors"
	case a.Rule != 1:
		return map[int]string{2: "wrong execution", 3: "another's message", 4: "wrong cancellation",
			5: "progress or update missing, late or out of order", 6: "error without a reason", 7: "stale read", 8: "process left"}[a.Rule]
	case hung[of]:
		return "waits in vain"
	case outcomes[of] > 1:
		return "answered twice"
	case strings.Contains(of, ":"):
		return "no answer"
	case used[of]:
		return "sessions ended"
	}
	return ""
}

// String lists the anomalies.
func (s *sum) String() string {
	var all []string
	for _, name := range broken {
		if n := s.anomalies[name]; n > 0 {
			all = append(all, fmt.Sprintf("%s: %d", name, n))
		}
	}
	return cmp.Or(strings.Join(all, ", "), "none")
}

// ends says how often a proxy had to be started again, and why.
func (r *row) ends() string {
	var all []string
	if r.ill.ended > 0 {
		all = append(all, fmt.Sprintf("ended %d×", r.ill.ended))
	}
	if r.ill.useless > 0 {
		all = append(all, fmt.Sprintf("without results %d×", r.ill.useless))
	}
	switch {
	case !r.way.serves():
		return "–"
	case all == nil:
		return "no"
	}
	return strings.Join(all, ", ")
}

func (r *row) print(to io.Writer) {
	if r.failed != nil {
		fmt.Fprintf(to, "%s: %v\n", r.way.name(), r.failed)
		return
	}
	fmt.Fprintf(to, "%s: lacks %v; well: %d operations, %s; under %d faults: %d of %d with a result, started again: %s, %s\n", r.way.name(), r.way.lacks,
		r.well.operations, r.well, r.ill.faults, r.ill.results, r.ill.operations, r.ends(), r.ill)
}

const (
	tablesBegin = "<!-- tables: interop/compare/run.sh histories -->\n"
	tablesEnd   = "<!-- end of the tables -->\n"
)

// putTables writes the tables into reliability.md, or prints them.
func (o options) putTables(rows []row, missing []string) error {
	var tables bytes.Buffer
	writeTables(&tables, rows, missing, o)
	if o.docs == "" {
		_, err := tables.WriteTo(os.Stdout)
		return err
	}
	return rewrite(filepath.Join(o.docs, "reliability.md"), tablesBegin, tablesEnd, tables.Bytes())
}

// writeTables writes what was seen of all ways.
func writeTables(to io.Writer, rows []row, missing []string, o options) {
	fmt.Fprintf(to, "\n%s. Seed %d, %v under faults for each row, %d clients at a time.\n", time.Now().UTC().Format("2 January 2006"), o.seed, o.duration, smallClients)
	if missing != nil {
		fmt.Fprintf(to, "Not installed: %s.\n", strings.Join(missing, ", "))
	}
	fmt.Fprintf(to, "\n### Without faults\n\n| | | not passed on | clients | operations | anomalies |\n|---|---|---|--:|--:|---|\n")
	for _, r := range rows {
		if r.failed != nil {
			fmt.Fprintf(to, "| %s | %s | does not work here | | | |\n", r.way.path, r.way.program)
			continue
		}
		fmt.Fprintf(to, "| %s | %s | %s | %d | %d | %s |\n", r.way.path, r.way.program,
			cmp.Or(strings.Join(r.way.lacks, ", "), "–"), r.well.clients, r.well.operations, r.well)
	}
	fmt.Fprintf(to, "\n### Under faults\n\n| | | clients | operations | with a result | faults | started again | anomalies |\n|---|---|--:|--:|--:|--:|---|---|\n")
	for _, r := range rows {
		if r.failed == nil {
			fmt.Fprintf(to, "| %s | %s | %d | %d | %d %% | %d | %s | %s |\n", r.way.path, r.way.program, r.ill.clients, r.ill.operations,
				100*r.ill.results/max(1, r.ill.operations), r.ill.faults, r.ends(), r.ill)
		}
	}
}
