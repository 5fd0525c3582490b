package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// A tally is what clients asked for, what became of it, and how often each fault was done.
type tally struct {
	clients  int
	outcomes map[string]map[string]int // by kind of operation
	faults   map[string]int
}

func newTally() *tally {
	return &tally{outcomes: map[string]map[string]int{}, faults: map[string]int{}}
}

// count adds events, which have all of each operation.
func (t *tally) count(events []Event) {
	kinds := map[string]string{}
	count := func(nonce, outcome string) {
		kind := kinds[nonce]
		if t.outcomes[kind] == nil {
			t.outcomes[kind] = map[string]int{}
		}
		t.outcomes[kind][outcome]++
	}
	for _, e := range events {
		switch e.What {
		case Join:
			t.clients++
		case Sent:
			kinds[e.Of] = kindOf(e.Text)
			count(e.Of, "sent")
		case Result, Failed:
			count(e.Of, string(e.What))
		case Cancel:
			if e.Text == "" {
				count(e.Of, string(e.What))
			}
		case Fault:
			if !strings.Contains(e.Text, " failed: ") { // another one was in its way
				t.faults[e.Text[:max(strings.LastIndexByte(e.Text, ' '), 0)]]++
			}
		}
	}
}

// print prints a table of the operations, and the faults.
func (t *tally) print(to io.Writer) {
	columns := []string{"sent", string(Result), string(Failed), string(Cancel)}
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "%d clients\t%s\t\n", t.clients, strings.Join(columns, "\t"))
	for _, kind := range slices.Sorted(maps.Keys(t.outcomes)) {
		fmt.Fprint(table, kind)
		for _, c := range columns {
			fmt.Fprintf(table, "\t%d", t.outcomes[kind][c])
		}
		fmt.Fprintln(table, "\t")
	}
	_ = table.Flush() // to has no errors that matter
	var all []string
	for _, name := range slices.Sorted(maps.Keys(t.faults)) {
		all = append(all, fmt.Sprintf("%d %s", t.faults[name], name))
	}
	fmt.Fprintln(to, "faults:", cmp.Or(strings.Join(all, ", "), "none"))
}

// kindOf returns what an operation is for, in a word.
func kindOf(text string) string {
	var o operation
	_ = json.Unmarshal([]byte(text), &o) // this program wrote it
	switch {
	case o.Server == "":
		return "list"
	case o.CancelAfter > 0:
		return "cancelled call"
	case o.Ask != "":
		return "question"
	case o.Progress > 0:
		return "progress"
	case o.Do == "touch":
		return "update"
	case o.Do != "":
		return "register"
	}
	return "call"
}
