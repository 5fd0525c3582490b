package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// An Anomaly is a promise that a history breaks.
type Anomaly struct {
	Rule int      `json:"rule"` // the number of the promise, see doc.go
	What string   `json:"what"`
	Of   []string `json:"of"` // the nonces, clients and servers that it is about

	picture func(file string) error // draws it; nil for none
}

// lingers is how long before an anomaly a fault may have ended that is shown with it.
const lingers = 2 * time.Second

// show returns the shortest part of a history that shows an anomaly, in order of time: what all histories and
// journals have of its operations, how the clients of these came and went, and the faults that were done meanwhile.
func show(a Anomaly, events []Event) (shown []Event) {
	first, last := int64(math.MaxInt64), int64(0)
	for _, e := range events {
		if a.about(e) && (e.Of != "" || e.What == Broken || e.What == Odd || e.What == Hangs) {
			first, last = min(first, e.At), max(last, e.At)
		}
	}
	over := map[string]int64{} // when a fault ended
	for _, e := range slices.Backward(events) {
		switch {
		case e.What == Over:
			over[e.Text] = e.At
		case e.What == Fault:
			if until, ends := over[e.Text]; e.At <= last && ends && until >= first-int64(lingers) {
				shown = append(shown, e)
			}
			delete(over, e.Text)
		case a.about(e):
			shown = append(shown, e)
		}
	}
	slices.Reverse(shown)
	return shown
}

// about reports whether an event shows an anomaly: it is of an operation of it, or says how a client of it was.
func (a Anomaly) about(e Event) bool {
	switch e.What {
	case Join, Left, Gone, Broken:
		return slices.ContainsFunc(a.Of, func(of string) bool {
			client, _, _ := strings.Cut(of, ":")
			return client == e.By
		})
	case Updated: // of the many clients that follow
		return slices.Contains(a.Of, e.Of) && slices.Contains(a.Of, e.By)
	}
	return slices.Contains(a.Of, cmp.Or(e.Of, e.By))
}

func (r *report) printAnomaly(to io.Writer, a Anomaly) {
	fmt.Fprintf(to, "  promise %d: %s (seed %d)\n", a.Rule, a.What, r.seed)
	for _, e := range show(a, r.events) {
		fmt.Fprintln(to, "   ", e)
	}
}
