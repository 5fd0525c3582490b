package main

import (
	"runtime"
	"slices"
	"testing"
	"time"
)

// The program uses one processor, all of them while that is not enough, and one again.
func TestProcessors(t *testing.T) {
	var did []string
	p := &processors{one: func() { did = append(did, "one") }, all: func() { did = append(did, "all") }}
	now, busy := time.Now(), 0.0
	for i, tt := range []struct {
		after time.Duration
		busy  float64 // processors meanwhile
		want  string
	}{
		{after: time.Hour, busy: 0.01},
		{after: 50 * time.Millisecond, busy: 0.79},
		{after: 50 * time.Millisecond, busy: 0.81, want: "all"},
		{after: 50 * time.Millisecond, busy: 1.9},
		{after: 50 * time.Millisecond, busy: 1.3},
		{after: time.Second, busy: 1.2, want: "one"},
		{after: time.Second, busy: 0.7},
		{after: 10 * time.Millisecond, busy: 1, want: "all"},
		{after: time.Hour, busy: 0, want: "one"},
	} {
		now, busy = now.Add(tt.after), busy+tt.busy*tt.after.Seconds()
		did = nil
		p.tune(now, busy)
		if want := slices.DeleteFunc([]string{tt.want}, func(s string) bool { return s == "" }); !slices.Equal(did, want) {
			t.Errorf("step %d: %q, want %q", i, did, want)
		}
	}
}

// What the program does counts as busy, after the next cycle of the collector.
func TestBusy(t *testing.T) {
	runtime.GC()
	before := busy()
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); {
	}
	runtime.GC()
	if after := busy(); after <= before {
		t.Errorf("%v s busy before, %v s after", before, after)
	}
}
