package proxy

import (
	"slices"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/upstream"
)

// Of a server that was started in both eras the one counts that runs, else the one that has
// failed, in whatever order they come.
func TestTelling(t *testing.T) {
	asked := upstream.Status{Upstream: "a", Era: "modern", State: upstream.StateReady}
	failed := upstream.Status{Upstream: "a", Era: "legacy", State: upstream.StateWaiting, Says: "did not start"}
	runs := upstream.Status{Upstream: "a", Era: "legacy", State: upstream.StateRunning}
	for _, row := range []struct {
		all  []upstream.Status
		want upstream.Status
	}{
		{[]upstream.Status{asked, failed}, failed},
		{[]upstream.Status{asked, runs}, runs},
		{[]upstream.Status{failed, runs}, runs},
	} {
		for range 2 {
			if got := representative(row.all)["a"]; got.State != row.want.State || got.Says != row.want.Says {
				t.Errorf("%v: got %v", row.all, got)
			}
			slices.Reverse(row.all)
		}
	}
}
