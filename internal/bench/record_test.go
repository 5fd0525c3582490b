package main

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
)

// Figures fail above their limit, and not for what noise may explain.
func TestFiguresAbove(t *testing.T) {
	recorded := map[string]float64{cpuOver: 2, allocOver: 2, clientKiB: 50}
	for name, c := range map[string]struct {
		now  figures
		want int
	}{
		"as recorded":         {figures{cpuOver: {2, 0}, allocOver: {2, 0}, clientKiB: {50, 0}}, 0},
		"within limits":       {figures{cpuOver: {2.49, 0}, allocOver: {2.19, 0}, clientKiB: {54.9, 0}}, 0},
		"processor time":      {figures{cpuOver: {2.51, 0}}, 1},
		"noise":               {figures{cpuOver: {2.6, 0.2}}, 0},
		"allocations, memory": {figures{allocOver: {2.21, 0}, clientKiB: {55.1, 0}}, 2},
		"not recorded":        {figures{cpuOver + ", new": {1, 0}}, 1},
	} {
		if got := c.now.above(recorded); len(got) != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// The record has all figures that are judged.
func TestRecord(t *testing.T) {
	text, err := os.ReadFile(recordPath)
	if err != nil {
		t.Fatal(err)
	}
	var recorded map[string]float64
	if err := json.Unmarshal(text, &recorded); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, p := range (programs{}).fronts() {
		want = append(want, cpuOver+", "+p.name, allocOver+", "+p.name)
	}
	want = append(want, clientKiB+", isolated", clientKiB+", shared")
	for name := range recorded {
		if !slices.Contains(want, name) {
			t.Errorf("%q is recorded and not judged", name)
		}
	}
	if len(recorded) != len(want) {
		t.Errorf("%d figures are recorded of %d", len(recorded), len(want))
	}
}

// The list of functions that report is that of the tree.
func TestBare(t *testing.T) {
	for file, functions := range bare {
		if _, err := hollow(file, functions); err != nil {
			t.Error(err)
		}
	}
	if _, err := hollow("upstream/calls.go", map[string]string{"renamed": "return"}); err == nil {
		t.Error("a function that is not there was found")
	}
}
