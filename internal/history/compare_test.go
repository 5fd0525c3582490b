package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestMain lets this program be the servers, too, as main does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "server" {
		if err := runServer(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "history:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// Our own proxy breaks no promise in the smaller world, and passes on all that is asked there.
func TestOwnWay(t *testing.T) {
	if testing.Short() {
		t.Skip("it uses processes for seconds")
	}
	self, err := os.MkdirTemp("", "history")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(self)
	o := options{dir: self, seed: 7, duration: 2 * time.Second}
	if o.proxy, err = build(o); err != nil {
		t.Fatal(err)
	}
	y := ownWays(o.proxy)[3] // one of them shows that the mode works
	r := o.row(context.Background(), y)
	if err := unpromised([]row{r}, o); err != nil {
		t.Fatalf("%v: %v, lacks %v", err, r.failed, r.way.lacks)
	}
	if r.ill.operations == 0 || r.ill.results == 0 || r.ill.faults == 0 {
		t.Errorf("%d operations, %d results, %d faults", r.ill.operations, r.ill.results, r.ill.faults)
	}
}

func TestWriteTables(t *testing.T) {
	rows := []row{
		{
			way:  way{program: "this", path: overHTTP, at: "http://", ours: true},
			well: &sum{clients: 3, operations: 30, results: 30},
			ill:  &sum{clients: 4, operations: 40, results: 30, faults: 5},
		},
		{
			way:  way{program: "that", path: overHTTP, at: "http://", lacks: []string{"progress", "updates"}},
			well: &sum{clients: 3, operations: 30, results: 30, anomalies: map[string]int{"no answer": 1}},
			ill: &sum{clients: 4, operations: 40, results: 10, faults: 5, ended: 2, useless: 1,
				anomalies: map[string]int{"process left": 2, "no answer": 3}},
		},
		{way: way{program: "other", path: toRemote}, failed: errors.New("calls do not work")},
	}
	var text bytes.Buffer
	writeTables(&text, rows, []string{"another"}, options{seed: 7, duration: time.Minute})
	for _, line := range []string{
		"Seed 7, 1m0s under faults for each row",
		"Not installed: another.",
		"| HTTP → process | this | – | 3 | 30 | none |",
		"| HTTP → process | that | progress, updates | 3 | 30 | no answer: 1 |",
		"| stdio → remote HTTP | other | does not work here | | | |",
		"| HTTP → process | this | 4 | 40 | 75 % | 5 | no | none |",
		"| HTTP → process | that | 4 | 40 | 25 % | 5 | ended 2×, without results 1× | no answer: 3, process left: 2 |",
	} {
		if !strings.Contains(text.String(), line) {
			t.Errorf("no %q in %s", line, &text)
		}
	}
}

// What a report shows is counted by what it means for users.
func TestCount(t *testing.T) {
	r := &report{
		events: history("c0.0 join - HTTP\nc0.0 sent a {}\nc0.0 result a\nc0.0 result a\nc0.0 sent c0.0:1 {}\nc1.0 join - HTTP\n" +
			"c2.0 join - HTTP\nc2.0 hangs\nnemesis fault - kill server own\nnemesis fault - cut remote failed: no"),
		anomalies: []Anomaly{
			{Rule: 1, Of: []string{"a"}}, {Rule: 1, Of: []string{"c0.0:1"}}, {Rule: 1, Of: []string{"c0.0"}}, {Rule: 1, Of: []string{"c1.0"}},
			{Rule: 1, Of: []string{"c2.0"}}, {Rule: 1, Of: []string{checking + "1.0"}}, {Rule: 7, Of: []string{"a"}}, {Rule: 8, Of: []string{"/proc/1"}},
			{Rule: 8, Of: []string{"proxy servers"}},
		},
	}
	s := &sum{}
	s.count(r)
	if s.clients != 3 || s.operations != 2 || s.results != 2 || s.faults != 1 {
		t.Errorf("%+v", s)
	}
	const want = "no answer: 1, answered twice: 1, waits in vain: 1, sessions ended: 1, stale read: 1, process left: 1, more and more servers or descriptors: 1"
	if s.String() != want {
		t.Errorf("%s, want %s", s, want)
	}
}

// The tables of a document are replaced, and what is around them stays. docs/reliability.md has places for them.
func TestReplaced(t *testing.T) {
	text, err := replaced([]byte("before\n"+tablesBegin+"old\n"+tablesEnd+"after\n"), tablesBegin, tablesEnd, []byte("new\n"))
	if want := "before\n" + tablesBegin + "new\n" + tablesEnd + "after\n"; err != nil || string(text) != want {
		t.Errorf("%s, %v", text, err)
	}
	if _, err := replaced([]byte("no place\n"), tablesBegin, tablesEnd, nil); err == nil {
		t.Error("put tables where there is no place for them")
	}
	document, err := os.ReadFile("../../docs/reliability.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := replaced(document, tablesBegin, tablesEnd, nil); err != nil {
		t.Error(err)
	}
}
