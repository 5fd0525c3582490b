//go:build unix

package main

import (
	"os"
	"strings"
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

// A modern client that only looks starts no server of the legacy era whose lists are known. Its
// first call starts one, and what that lists then is told to its listen.
func TestModernClientsStartNoKnownServer(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"local", "unix link", "shared"} {
		t.Run(place, func(t *testing.T) {
			s := newSite(t, layout{client: mcp.Modern, lazy: true, place: place})
			s.connect().list()
			eventually(t, "the end of the trials", s.settled) // a shared server outlives them
			running, trials := len(children(os.Getpid(), s.dir)), [2]int{s.starts("a"), s.starts("b")}
			c, raw := s.connect(), s.join("WebSocket")
			c.follow("")
			const meta = `"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}}`
			for id, method := range map[string]string{"101": "server/discover", "102": "tools/list", "103": "resources/list"} {
				raw.say(`{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `",` + meta)
				got := raw.await(id)
				if !strings.Contains(got, `"ttlMs":0,"cacheScope":"private"`) || method == "tools/list" && !(strings.Contains(got, "a__echo") && strings.Contains(got, "b__echo")) {
					t.Errorf("%s: %s", method, got)
				}
			}
			if now := [2]int{s.starts("a"), s.starts("b")}; now != trials {
				t.Errorf("%d servers have started, not %d", now, trials)
			}
			eventually(t, "no more processes", func() bool { return len(children(os.Getpid(), s.dir)) <= running }) // besides zombies of other tests
			c.get(3, "a__grow")
			eventually(t, "list_changed", func() bool { return c.heardOf("tools/list_changed") > 0 })
			c.get(4, "a__grown1")
			if a, b := s.starts("a")-trials[0], s.starts("b")-trials[1]; a == 0 && place != "shared" || b > 0 {
				t.Errorf("%d servers of a have started, and %d of b", a, b)
			}
		})
	}
}

// starts returns how many servers of an upstream have noted anything.
func (s *site) starts(upstream string) int {
	pids := map[string]bool{}
	for _, line := range allNotedIn(s.record(upstream)) {
		if pid, _, ok := strings.Cut(line, " "); ok {
			pids[pid] = true
		}
	}
	return len(pids)
}
