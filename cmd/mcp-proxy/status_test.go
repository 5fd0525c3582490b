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
