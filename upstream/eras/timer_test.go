package eras

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// After the bridge has stopped, no timer is left.
func TestStopEndsTimers(t *testing.T) {
	inPool(t, func(k *pooled) {
		const meta = `"_meta":{STAMP,"io.modelcontextprotocol/logLevel":"info"}`
		k.say("c", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"_meta":{STAMP},"notifications":{"resourceSubscriptions":["a"]}}}`)
		k.hello("s0", `{"resources":{"subscribe":true},"logging":{}}`)
		k.recv("s0") // the subscription
		k.say("c", `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a",`+meta+`}}`)
		k.recv("s0") // the level
		k.say("c", `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"a","_meta":{STAMP}}}`)
		pending := k.b.timers.Len
		if pending() < 3 { // the ack, the level, the session's idleness
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

// The package waits for every timer.
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
		if !strings.HasSuffix(file, "_test.go") && strings.Contains(string(text), "time.AfterFunc(") {
			t.Errorf("%s: a timer that is none of timers", file)
		}
	}
}
