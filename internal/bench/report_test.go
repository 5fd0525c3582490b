package main

import (
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	got := median([]sample{
		{p50: 3, p99: 30, big: 1, first: 7, perSecond: 100},
		{p50: 1, p99: 50, big: 2, first: 9, perSecond: 300},
		{p50: 2, p99: 40, big: 3, first: 8, perSecond: 200},
	})
	want := sample{p50: 2, p99: 40, big: 2, first: 8, perSecond: 200}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if none := median(nil); none != (sample{}) {
		t.Errorf("median of nothing: %+v", none)
	}
}

func TestPrintCalls(t *testing.T) {
	const µs = time.Microsecond
	targets := programs{}.targets()
	medians := map[string]sample{
		"direct":    {p50: 30 * µs, perSecond: 300e3, big: 1, first: 1},
		"relay":     {p50: 60 * µs, perSecond: 200e3, big: 1, first: 1},
		"stdio":     {p50: 90 * µs, perSecond: 79e3, big: 1, first: 21 * time.Millisecond},
		"websocket": {p50: 120 * µs, perSecond: 50e3, big: 1, first: 1},
		"http":      {p50: 120 * µs, perSecond: 25e3, big: 1, first: 1},
		"unix link": {p50: 135 * µs, perSecond: 64e3, big: 1, first: 1},

		"shared http":           {p50: 120 * µs, perSecond: 25e3, big: 1, first: 1},
		"modern http":           {p50: 120 * µs, perSecond: 26e3, cpu: 40 * µs, big: 1, first: 1},
		"modern http to legacy": {p50: 140 * µs, perSecond: 20e3, cpu: 56 * µs, big: 1, first: 1},
	}
	var out strings.Builder
	if err := printCalls(&out, targets, medians); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"1.50 ≤ 1.5 ✓", "39.5 % ≥ 40 % ✗", "≤ 20ms ✗", "2.00 ≤ 1.7 ✗", "25.0 % ≥ 25 % ✓", "12.5 % ≥ 12.5 % ✓",
		"modern http shared http 120 µs 1.00 ≤ 1 ✓", "56 µs + 16 µs ≤ 15µs ✗",
		"unix link stdio 135 µs 1.50 ≤ 1.25 ✗", "81.0 % ≥ 80 % ✓",
	} {
		if columns := strings.Fields(out.String()); !strings.Contains(strings.Join(columns, " "), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestPrintStall(t *testing.T) {
	var out strings.Builder
	if err := printStall(&out, stall{before: 100 * time.Microsecond, during: 109 * time.Microsecond}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); !strings.Contains(got, "× 1.09 ≤ 1.1 ✓") {
		t.Error(got)
	}
}

func TestPrintWeights(t *testing.T) {
	groups := programs{}.groups()
	weights := make([][]weight, len(groups))
	for i := range weights {
		weights[i] = []weight{{idle: 10 * mib, each: 40 * kib}}
	}
	weights[3] = append(weights[3], weight{each: 25 * kib})
	var out strings.Builder
	if err := printWeights(&out, groups, weights); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"idle 10.0 MiB ≤ 15 MiB ✓", "connected WebSocket clients 40.0 KiB ≤ 30 KiB ✗", "Unix link 40.0 KiB 25.0 KiB",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

func TestCrowd(t *testing.T) {
	for text, want := range map[string]crowd{"250x20": {250, 20}, "10000x1": {10_000, 1}, "0x1": {}, "5": {}, "5x": {}, "5x6x": {}, "x": {}} {
		c, err := parseCrowd(text)
		if good := want != (crowd{}); good != (err == nil) || good && c != want {
			t.Errorf("%q: %v, %v", text, c, err)
		}
	}
}

func TestPrintVisit(t *testing.T) {
	var out strings.Builder
	v := visit{
		initialized: 250, arrival: 5100 * time.Millisecond, each: 41 * kib, calls: 5000, answered: 4999,
		p50: time.Millisecond, p99: 2 * time.Millisecond, files: 1, again: time.Second, exit: time.Second,
	}
	if err := printVisit(&out, crowd{250, 20}, v); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"250 clients of 20 upstreams", "initialized 250 250 ✓", "in 5100.0 ms ≤ 5s ✗", "upstream 41.0 KiB ≤ 70 KiB ✓",
		"calls answered 4999 5000 ✗", "1.0 ms, 2.0 ms", "descriptors left 1 ≤ 0 ✗", "others initialized in 1000.0 ms ≤ 5s ✓",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
