package main

import (
	"strings"
	"testing"
)

// A row counts the calls of the servers that are hit, by what became of them.
func TestRollingRow(t *testing.T) {
	p := &rolled{name: "host", servers: []string{"far"}}
	var events []Event
	for line := range strings.Lines(`c0 join - stdio
c0 sent a {"server":"far","nonce":"a"}
c0 sent b {"server":"far","nonce":"b"}
c0 sent c {"server":"far","nonce":"c"}
c0 sent d {"server":"far","nonce":"d"}
c0 sent e {"server":"far-common","nonce":"e"}
c0 sent f {"server":"far","nonce":"f"}
c0 result a {}
c0 failed b {"data":{"phase":"not_sent"}}
c0 failed c {"data":{"phase":"in_flight"}}
c0 failed d {"message":"no"}
c0 result e {}
c0 broken - EOF
`) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 4)
		events = append(events, Event{By: f[0], What: What(f[1]), Of: f[2], Text: f[3]})
	}
	want := "| host | 5 | 1 | 1 | 1 | 1 no, 1 none, the connection ended | 1: 1 stdio |"
	if got := p.row(events); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
