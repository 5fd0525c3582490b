package main

import (
	"runtime"
	"strings"
	"testing"
)

// What becomes of calls on the ways of our own proxy, by situation and route, as
// docs/closing.md promises and docs/faults.md shows it beside others.
const promised = `
The server is killed
stdio → process | 8 errors | -32603 "Connection closed: main was killed (signal: killed)" | works | –
WebSocket → process | 8 errors | -32603 "Connection closed: main was killed (signal: killed)" | works | works
HTTP → process | 8 errors | -32603 "Connection closed: main was killed (signal: killed)" | works | works
stdio → remote HTTP | 8 errors | -32603 "Connection closed: 127.0.0.1:PORT broke off the connection (connection lost)" | works | –
HTTP → remote HTTP | 8 errors | -32603 "Connection closed: far broke off the connection (connection lost)" | works | works
The server exits
stdio → process | 2 errors | -32603 "Connection closed: main exited (exit status 3)" | works | –
WebSocket → process | 2 errors | -32603 "Connection closed: main exited (exit status 3)" | works | works
HTTP → process | 2 errors | -32603 "Connection closed: main exited (exit status 3)" | works | works
stdio → remote HTTP | 2 errors | -32603 "Connection closed: 127.0.0.1:PORT broke off the connection (connection lost)" | works | –
HTTP → remote HTTP | 2 errors | -32603 "Connection closed: far broke off the connection (connection lost)" | works | works
The client cancels
stdio → process | is cancelled | none
WebSocket → process | is cancelled | none
HTTP → process | is cancelled | -32800 "Request cancelled"
stdio → remote HTTP | is cancelled | none
HTTP → remote HTTP | is cancelled | -32800 "Request cancelled"
The client leaves
stdio → process | is cancelled | ended | ended | needed SIGTERM
WebSocket → process | is cancelled | ended | ended | stays
HTTP → process | is cancelled | ended | ended | stays
stdio → remote HTTP | is cancelled | its session is deleted | – | needed SIGTERM
HTTP → remote HTTP | is cancelled | its session is deleted | – | stays
The proxy gets SIGTERM
stdio → process | -32000 "Connection closed: this session is over" | ended | ended | ended
WebSocket → process | is answered | ended | ended | ended
HTTP → process | is answered | ended | ended | ended
stdio → remote HTTP | -32000 "Connection closed: this session is over" | ended | its session is deleted | –
HTTP → remote HTTP | is answered | ended | its session is deleted | –
Two clients
WebSocket → process | one each | each gets its own answer | is answered | is answered
HTTP → process | one each | each gets its own answer | is answered | is answered
HTTP → remote HTTP | one for both | each gets its own answer | is answered | -32603 "Connection closed: far broke off the connection (connection lost)"
`

func TestFaults(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it reads /proc")
	}
	b, err := build(t.TempDir(), "", profiler{})
	if err != nil {
		t.Fatal(err)
	}
	ways := b.own()
	found, err := b.faults(ways, 8)
	if err != nil {
		t.Fatal(err)
	}
	if got := seen(ways, found); got != promised {
		t.Errorf("got%swant%s", got, promised)
	}
}

// seen writes found without times. How a killed server's connection ends is up to the
// kernel: reset if there was something left to read.
func seen(ways []way, found map[string][]cell) string {
	out := "\n"
	for _, s := range situations {
		out += s.name + "\n"
		for _, w := range ways {
			cells := found[s.name+w.program+w.route]
			if cells == nil {
				continue
			}
			out += w.route
			for _, c := range cells {
				out += " | " + c.text
			}
			out += "\n"
		}
	}
	return strings.ReplaceAll(out, "(connection reset)", "(connection lost)")
}
