package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// compare measures our proxy beside others, and writes what it finds into docs. It prints
// instead if docs is "", and has our proxy alone if there are no pins.
func compare(b programs, o options, p pins) error {
	if !slices.Contains([]string{"calls", "faults", "all"}, o.peers.what) {
		return errors.New("-compare calls, faults, or all")
	}
	ways := b.own()
	if p.dir != "" {
		peers, err := p.peers()
		if err != nil {
			return fmt.Errorf("%w (interop/compare/run.sh installs what is missing)", err)
		}
		ways = append(ways, peers...)
	}
	if o.peers.what != "faults" {
		err := o.peers.put("benchmarks.md", func(w io.Writer) error { return b.compareCalls(w, ways, o) })
		if err != nil {
			return err
		}
	}
	if o.peers.what == "calls" {
		return nil
	}
	return o.peers.put("faults.md", func(w io.Writer) error { return b.compareFaults(w, ways) })
}

// A comparison is the command line of compare.
type comparison struct {
	what string // calls, faults or all; "" for no comparison
	dir  string // of the other programs; "" for none
	docs string // the directory of the documents that get the tables; "" for none
}

const (
	tablesBegin = "<!-- tables: interop/compare/run.sh -->\n"
	tablesEnd   = "<!-- end of the tables -->\n"
)

// put has the tables of one document written.
func (c comparison) put(document string, write func(io.Writer) error) error {
	if c.docs == "" {
		return write(os.Stdout)
	}
	path := filepath.Join(c.docs, document)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, after, ok := places(text)
	if !ok {
		return fmt.Errorf("%s has no place for tables", path)
	}
	var tables bytes.Buffer
	if err := write(&tables); err != nil {
		return err
	}
	return os.WriteFile(path, slices.Concat(before, []byte(tablesBegin), tables.Bytes(), []byte(tablesEnd), after), 0o644)
}

// places returns what is around the tables in a document.
func places(document []byte) (before, after []byte, ok bool) {
	before, rest, begins := bytes.Cut(document, []byte(tablesBegin))
	_, after, ends := bytes.Cut(rest, []byte(tablesEnd))
	return before, after, begins && ends
}

// compareCalls writes a table of calls for each route.
func (b programs) compareCalls(w io.Writer, ways []way, o options) error {
	base := []way{
		{"no proxy", overStdio, func(server []string) target { return target{argv: server, open: openStdio} }, false},
		{"a relay of bytes", overStdio, func(server []string) target {
			return target{argv: append([]string{b.relay}, server...), open: openStdio}
		}, false},
		{"no proxy", httpToRemote, func(server []string) target { return target{argv: server, serves: true, open: openHTTP} }, true},
	}
	ways = append(base, ways...)
	var targets []target
	for _, way := range ways {
		server := []string{b.echo}
		if way.remote() {
			server = append(server, "http")
		}
		tgt := way.target(server)
		tgt.name = way.program + way.route
		targets = append(targets, tgt)
	}
	medians, err := rounds(targets, o)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "\n%s, medians of %d rounds of %s for each figure.\n", time.Now().UTC().Format("2 January 2006"), o.rounds, o.part)
	for _, route := range routes {
		fmt.Fprintf(w, "\n### %s\n\n| | p50 | p99 | calls/s, %d at a time | 1 MiB result | memory, idle and after | first answer |\n|---|--:|--:|--:|--:|--:|--:|\n", route, width)
		for _, way := range ways {
			if way.route == route {
				m := medians[way.program+way.route]
				fmt.Fprintf(w, "| %s | %s | %s | %.0f | %s | %s | %s |\n", way.program, short(m.p50), short(m.p99), m.perSecond, short(m.big), mebi(m.idle, m.memory), short(m.first))
			}
		}
	}
	return nil
}

func (w way) remote() bool { return strings.HasSuffix(w.route, "remote HTTP") }

// short writes d with two or three digits.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.0f µs", d.Seconds()*1e6)
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1e3)
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func mebi(idle, after float64) string { return fmt.Sprintf("%.0f, %.0f MiB", idle/mib, after/mib) }
