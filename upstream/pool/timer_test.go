package pool

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts timers
		var ran []string
		proceed := make(chan struct{})
		first := ts.after(1, func() { ran = append(ran, "first") })
		ts.after(2, func() { <-proceed; ran = append(ran, "slow") })
		never := ts.after(time.Hour, func() { ran = append(ran, "stopped") })
		ts.after(time.Hour, func() { ran = append(ran, "ended") })
		time.Sleep(time.Second)
		first.stop() // too late
		never.stop()
		never.stop()
		over := make(chan struct{})
		go func() { ts.end(); ts.wait(); close(over) }()
		synctest.Wait()
		select {
		case <-over:
			t.Error("one that runs was not waited for")
		default:
		}
		if late := ts.after(1, func() { ran = append(ran, "late") }); late != nil {
			t.Error("one began after the end")
		} else {
			late.stop()
		}
		close(proceed)
		<-over
		never.stop()
		time.Sleep(2 * time.Hour)
		if got := strings.Join(ran, " "); got != "first slow" {
			t.Error("ran:", got)
		}
	})
}

// When the bridge has stopped nothing is left that would still happen.
func TestStopEndsTimers(t *testing.T) {
	inPool(t, func(k *pooled) {
		const meta = `"_meta":{STAMP,"io.modelcontextprotocol/logLevel":"info"}`
		k.say("c", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"_meta":{STAMP},"notifications":{"resourceSubscriptions":["a"]}}}`)
		k.hello("s0", `{"resources":{"subscribe":true},"logging":{}}`)
		k.recv("s0") // the subscription
		k.say("c", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a",`+meta+`}}`)
		k.recv("s0") // the level
		k.say("c", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"a","_meta":{STAMP}}}`)
		pending := func() int {
			k.b.pool.timers.mu.Lock()
			defer k.b.pool.timers.mu.Unlock()
			return len(k.b.pool.timers.open)
		}
		if pending() < 3 { // the ack, the level, the lane's idleness
			t.Error("pending:", pending())
		}
		k.b.Stop(k.ctx)
		if pending() != 0 {
			t.Error("pending after the stop:", pending())
		}
		k.recv("s0")
		for range 3 {
			k.recv("c")
		}
	})
}

// Every timer of the package has somebody who waits for it.
func TestTimersAreOwned(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if file != "timer.go" && !strings.HasSuffix(file, "_test.go") && strings.Contains(string(text), "time.AfterFunc(") {
			t.Errorf("%s: a timer that is none of timers", file)
		}
	}
}
