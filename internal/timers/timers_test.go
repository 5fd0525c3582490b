package timers_test

import (
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
