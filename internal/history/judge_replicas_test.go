package main

import (
	"slices"
	"strings"
	"testing"
)

// While no replica has crashed, calls over Streamable HTTP do not fail, and nobody has to begin again. A crash explains
// what was in flight, and what was turned away before it ran.
func TestJudgeReplicas(t *testing.T) {
	const (
		join      = "nemesis replicated - 3\nc0 join - HTTP\nc1 join - WebSocket\n"
		restart   = "nemesis fault - restart proxy proxy-1\nnemesis over - restart proxy proxy-1\n"
		kill      = "nemesis fault - kill proxy proxy-1\n"
		sent      = "c0 sent a " + `{"server":"common","nonce":"a"}` + "\n"
		asks      = "c0 sent a " + `{"server":"modern-common","nonce":"a","ask":"sampling/createMessage"}` + "\n"
		broken    = "c0 broken - HTTP 404\n"
		lost      = `c0 failed a {"message":"EOF"}` + "\n"
		expired   = `c0 failed a {"code":-32602,"data":{"reason":"request_state_expired"}}` + "\n"
		later     = `c0 failed a {"message":"HTTP 503 with Retry-After: x"}` + "\n"
		wait      = "c1 started -\n"
		aSecond   = 1100
		afterward = 20_000
	)
	more := func(n int) (text string) {
		for range n {
			text += wait
		}
		return text
	}
	for _, tt := range []struct {
		name, events string
		want         bool // it breaks promise 9
	}{
		{"a call fails", join + sent + lost, true},
		{"a restart loses a call", join + sent + restart + lost, true},
		{"a restart ends a session", join + restart + broken, true},
		{"a restart ends a WebSocket", join + restart + "c1 broken - EOF\n", false},
		{"a restart ends a suspended call", join + asks + restart + expired, false},
		{"a crash loses a call", join + sent + kill + lost, false},
		{"a crash ends a new session", join + "c0 follows - tools\n" + kill + broken, false},
		{"a crash ends a session", join + "c0 follows - tools\n" + more(aSecond) + kill + broken, true},
		{"two crashes end a session", join + "c0 follows - tools\n" + more(aSecond) + kill + kill + broken, false},
		{"a split ends a session", join + "c0 follows - tools\n" + more(aSecond) + strings.Replace(kill, "kill", "split", 1) + broken, false},
		{"a call after a crash fails", join + kill + more(aSecond) + sent + lost, true},
		{"a call after a crash is turned away", join + kill + more(aSecond) + sent + later, false},
		{"a call fails long after a crash", join + kill + "nemesis over - kill proxy proxy-1\n" + more(afterward) + sent + lost, true},
		{"a key is gone and its session is not", join + "nemesis kept - a session", true},
	} {
		got := slices.ContainsFunc(judgeHistory(history(tt.events), nil), func(a Anomaly) bool { return a.Rule == 9 })
		if got != tt.want {
			t.Errorf("%s: broken is %v", tt.name, got)
		}
	}
}

// A question may have been on the response that the client has dropped.
func TestJudgeDroppedQuestion(t *testing.T) {
	const (
		asks  = "nemesis replicated - 3\nc0 join - HTTP\n" + `c0 sent a {"server":"own","nonce":"a","ask":"sampling/createMessage"}` + "\nown/1 began a\n"
		drops = `c0 sent b {"server":"own","nonce":"b"}` + "\nc0 lost b\n"
	)
	for events, want := range map[string]bool{asks: true, asks + drops: false, asks + strings.Replace(drops, "own", "common", 1): true} {
		got := slices.ContainsFunc(judgeHistory(history(events), nil), func(a Anomaly) bool { return a.Rule == 1 })
		if got != want {
			t.Errorf("broken is %v: %s", got, events)
		}
	}
}

// A client gets the updates of a shared server from the process of its own replica alone.
func TestServedBy(t *testing.T) {
	events := history(`c0 join - HTTP
c0 sent a {"server":"common"}
common/1 began a
c0 sent b {"server":"common"}
common/1 began b
c0 sent c {"server":"common"}
common/2 began c`)
	j := &judge{events: events, calls: map[string]*record{}, clients: map[string]*life{}}
	for _, e := range events {
		j.read(e)
	}
	j.services = j.servicesOf()
	for _, tt := range []struct {
		process string
		at      int64
		want    bool
	}{{"common/1", 4e6, true}, {"common/2", 4e6, false}, {"common/1", 6e6, false}, {"common/1", 1e6, false}, {"common/2", 8e6, false}} {
		if got := j.servedBy("c0", "common", tt.process, tt.at); got != tt.want {
			t.Errorf("by %s at %d: %v", tt.process, tt.at, got)
		}
	}
}
