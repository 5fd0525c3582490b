package timers_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/timers"
)

func TestTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts timers.Set
		var ran []string
		proceed := make(chan struct{})
		first := ts.After(1, func() { ran = append(ran, "first") })
		ts.After(2, func() { <-proceed; ran = append(ran, "slow") })
		never := ts.After(time.Hour, func() { ran = append(ran, "stopped") })
		ts.After(time.Hour, func() { ran = append(ran, "ended") })
		time.Sleep(time.Second)
		first.Stop() // too late
		never.Stop()
		never.Stop()
		over := make(chan struct{})
		go func() { ts.End(); ts.Wait(); close(over) }()
		synctest.Wait()
		select {
		case <-over:
			t.Error("one that runs was not waited for")
		default:
		}
		if late := ts.After(1, func() { ran = append(ran, "late") }); late != nil {
			t.Error("one began after the end")
		} else {
			late.Stop()
		}
		close(proceed)
		<-over
		never.Stop()
		time.Sleep(2 * time.Hour)
		if got := strings.Join(ran, " "); got != "first slow" {
			t.Error("ran:", got)
		}
	})
}

func TestRetryPausesGrow(t *testing.T) {
	var r timers.Retry
	var pauses []time.Duration
	after := func(d time.Duration, _ func()) *timers.Timer { pauses = append(pauses, d); return nil }
	for i := range 9 {
		if i == 8 {
			r.Reset()
		}
		r.After(after, nil)
	}
	if want := []time.Duration{500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 500}; !slices.EqualFunc(pauses, want,
		func(d, ms time.Duration) bool { return d == ms*time.Millisecond }) {
		t.Error("pauses:", pauses)
	}
}
