package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
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
	for _, name := range []string{"proxy.log", "host.log", "connect.log", "proxy-1.log", "proxy-2.log", "proxy-3.log", "proxy-4.log"} {
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

// sum returns the report in numbers.
func (r *report) sum() string {
	var text strings.Builder
	t := newTally()
	t.count(r.events)
	t.print(&text)
	fmt.Fprintln(&text, promised(r.anomalies))
	return text.String()
}

// print prints what was done and seen, and the anomalies.
func (r *report) print(to io.Writer) {
	t := newTally()
	t.count(r.events)
	t.print(to)
	if len(r.samples) > 0 {
		fmt.Fprintln(to, r.rest())
	}
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
