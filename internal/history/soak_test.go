package main

import (
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// seriesOf returns two hours of readings, a minute a slice, with one quantity as a function of the minute.
func seriesOf(value func(minute float64) float64) *series {
	s := &series{}
	for second := range 7200 {
		r := reading{at: int64(second) * 1e9, slice: second/60 + 1, active: second%60 < 54}
		for i := range r.values {
			r.values[i] = math.NaN()
		}
		r.values[goroutines] = value(float64(second) / 60)
		s.all = append(s.all, r)
	}
	return s
}

// What leaks is found under noise, and noise, a step, and what fills up at first are not.
func TestTrend(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	noise := func() float64 { return 300 + 80*random.NormFloat64() }
	for _, tt := range []struct {
		name  string
		value func(minute float64) float64
		found int
	}{
		{"noise", func(float64) float64 { return noise() }, 0},
		{"a leak", func(minute float64) float64 { return noise() + 2*minute }, 1},
		{"a burst", func(minute float64) float64 {
			if minute > 100 && minute < 110 {
				return noise() + 5000
			}
			return noise()
		}, 0},
		{"a pool that fills", func(minute float64) float64 { return noise() + 500*min(minute, 8) }, 0},
		{"less and less", func(minute float64) float64 { return noise() - minute }, 0},
	} {
		if found := seriesOf(tt.value).judge(io.Discard, nil); len(found) != tt.found {
			t.Errorf("%s: %v", tt.name, found)
		}
	}
}

// A leak that the load hides shows at quiet moments.
func TestTrendAtRest(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for _, leak := range []int{0, 1} {
		var quiet []moment
		for i := range 120 {
			quiet = append(quiet, moment{sample{goroutines: 120 + random.IntN(30) + leak*i}, float64(i)})
		}
		if found := seriesOf(func(float64) float64 { return 700 }).judge(io.Discard, quiet); len(found) != leak {
			t.Errorf("%d a minute: %v", leak, found)
		}
	}
}

// The picture of two hours is small, and needs no fonts.
func TestDraw(t *testing.T) {
	file := filepath.Join(t.TempDir(), "soak.svg")
	s := seriesOf(func(float64) float64 { return 300 + 80*rand.NormFloat64() })
	for i := range s.all {
		for k := range s.all[i].values {
			s.all[i].values[k] = s.all[i].values[goroutines]
		}
	}
	if err := s.draw(file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "<path"); len(text) > 150<<10 || n < 2*len(quantities) || strings.Contains(string(text), "Liberation") {
		t.Errorf("%d bytes, %d paths", len(text), n)
	}
}

// A call is timed unless a fault was on its way while it went on, or a second before.
func TestCallTimes(t *testing.T) {
	const ms = int64(time.Millisecond)
	call := func(nonce, server string, from, to int64) []Event {
		o := &operation{Server: server, call: call{Nonce: nonce, MS: 10}}
		return []Event{{from * ms, "c0.0.0", Sent, nonce, string(encode(o))}, {to * ms, "c0.0.0", Result, nonce, "{}"}}
	}
	events := call("c0.0.0:0", "far", 100, 150)
	events = append(events, Event{200 * ms, "nemesis", Fault, "", "cut link"}, Event{200 * ms, "nemesis", Over, "", "cut link"})
	events = append(events, call("c0.0.0:1", "far", 300, 350)...)
	events = append(events, call("c0.0.0:2", "own", 400, 430)...)
	events = append(events, call("c0.0.0:3", "far", 1300, 1320)...)
	var got []float64
	for _, c := range callTimes(events) {
		got = append(got, c.ms)
	}
	if len(got) != 3 || got[0] != 40 || got[1] != 20 || got[2] != 10 {
		t.Error(got)
	}
}

// The events of a slice are those of its clients.
func TestWriterOf(t *testing.T) {
	dir := t.TempDir()
	if _, err := openJournal(dir, "far-common"); err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(files) != 1 || writerOf(files[0]) != strconv.Itoa(os.Getpid()) {
		t.Errorf("the writer of %v is not this process, %d", files, os.Getpid())
	}
}

func TestIsLate(t *testing.T) {
	for _, tt := range []struct {
		by, of string
		late   bool
	}{
		{"c3.0.1", "", false}, {"c2.0.1", "", true}, {"own/12", "c3.0.1:7", false}, {"own/12", "c2.9.1:7", true},
		{"nemesis", "", false}, {"common/9", "", false},
	} {
		if got := isLate(Event{By: tt.by, Of: tt.of}, 3); got != tt.late {
			t.Errorf("%s %s: %v", tt.by, tt.of, got)
		}
	}
}
