package main

import (
	"fmt"
	"slices"
	"testing"
)

// What is shown of an anomaly are its operation, how its client was, and the faults that overlap with it.
func TestShow(t *testing.T) {
	at := int64(0)
	event := func(by string, what What, of, text string) Event {
		at += int64(lingers)
		return Event{at, by, what, of, text}
	}
	events := []Event{event("nemesis", Fault, "", "cut link"), event("nemesis", Over, "", "cut link"), event("c0", Join, "", ""),
		event("c1", Join, "", ""), event("c0", Sent, "c0:1", ""), event("c0", Sent, "c0:2", ""), event("nemesis", Fault, "", "stop server own"),
		event("own/1", Began, "c0:1", ""), event("c1", Updated, "c0:1", ""), event("c0", Failed, "c0:1", ""), event("c0", Result, "c0:2", ""),
		event("nemesis", Over, "", "stop server own"), event("nemesis", Fault, "", "cut link"), event("nemesis", Over, "", "cut link"),
		event("c0", Left, "", "")}
	var shown []string
	for _, e := range show(Anomaly{Of: []string{"c0:1"}}, events) {
		shown = append(shown, fmt.Sprint(e.By, " ", e.What))
	}
	want := []string{"c0 join", "c0 sent", "nemesis fault", "own/1 began", "c0 failed", "c0 left"}
	if !slices.Equal(shown, want) {
		t.Errorf("%q, want %q", shown, want)
	}
}
