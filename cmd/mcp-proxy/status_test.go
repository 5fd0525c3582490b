package main

import (
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// The row of a link that is down says why.
func TestLinkRows(t *testing.T) {
	var text strings.Builder
	printStatus(&text, &proxy.Snapshot{Links: []proxy.Link{
		{Name: "far", Up: true, Upstreams: []string{"main"}},
		{Name: "tools", Why: "has not connected yet (link lost)"},
		{Name: "docs", Why: "is unreachable: connection refused", Lost: 0},
	}}, false, time.Now())
	var rows []string
	for line := range strings.Lines(text.String()) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	all := strings.Join(rows, "\n")
	for _, want := range []string{"far up 0 main", "tools down 0 has not connected yet (link lost)", "docs down 0 is unreachable: connection refused"} {
		if !strings.Contains(all+"\n", "\n"+want+"\n") {
			t.Errorf("no row %q in\n%s", want, all)
		}
	}
}

// Upstreams that rest, for all clients or for some, and spare processes.
func TestUpstreamRows(t *testing.T) {
	var text strings.Builder
	printStatus(&text, &proxy.Snapshot{
		Traffic: []proxy.Traffic{
			{Upstream: "a", State: "resting", Resting: 2}, {Upstream: "b", State: "running", Resting: 1},
			{Upstream: "c", Link: "far", Resting: 3},
		},
		Upstreams: []proxy.Upstream{{Name: "b", State: "running"}, {Name: "b", State: "spare", PID: 7}},
		Links:     []proxy.Link{{Name: "far", Up: true}},
	}, true, time.Now())
	all := "\n"
	for line := range strings.Lines(text.String()) {
		all += strings.Join(strings.Fields(line), " ") + "\n"
	}
	for _, want := range []string{"a here resting 0 0", "b here running 1 0 rests for 1", "c far link up 0 rests for 3", "b spare 7 0 0 0"} {
		if !strings.Contains(all, "\n"+want+"\n") {
			t.Errorf("no row %q in %s", want, all)
		}
	}
}
