//go:build unix

package main

import (
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Servers that start when they are needed work like others, wherever they are: calls, cancellations,
// and the news of a list that one client has changed for all.
func TestServersThatStartWhenNeeded(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{lazy: true}, func(s *site) {
		c, other := s.connect(), s.connect()
		c.follow("")
		other.follow("")
		if got := c.get(3, "a__echo"); got[0] == '!' {
			t.Error(got)
		}
		if n := countPart(s.notedBy("b"), `"tools/call"`); n > 0 {
			t.Errorf("%d calls came to b", n)
		}
		c.call(4, "a__hang")
		s.awaitNoted("a", `"hang"`, 1)
		c.cancel("4")
		s.awaitNoted("a", "notifications/cancelled", 1)
		c.get(5, "a__grow")
		eventually(t, "list_changed", func() bool { return c.heardOf("tools/list_changed") > 0 })
		if s.layout.place == "shared" || s.layout.client == mcp.Modern && s.layout.era == mcp.Modern {
			eventually(t, "list_changed for the other client", func() bool { return other.heardOf("tools/list_changed") > 0 })
		}
		c.get(6, "a__grown1")
		other.works(7, "b__echo")
	})
}
