//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// snapshots returns those of the proxy, and of the host if there is one.
func (s *site) snapshots() []proxy.Snapshot {
	all := []proxy.Snapshot{s.proxy.Snapshot()}
	if s.far != nil {
		all = append(all, s.far.host.Snapshot())
	}
	return all
}

// rests reports whether upstream a rests for the only client, and no server of it runs.
func (s *site) rests() bool {
	rests := 0
	for _, now := range s.snapshots() {
		for _, u := range now.Upstreams {
			if u.Name == "a" {
				return false
			}
		}
		for _, t := range now.Traffic {
			if t.Upstream == "a" && (t.State == "resting" || t.State == "") {
				rests += max(t.Resting, 1)
			}
		}
	}
	return rests == len(s.snapshots())
}

// An idle server is stopped, and comes back with the next call, wherever it is. Nobody is told.
func TestRest(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{a: ", idleStop: 30ms", core: true}, func(s *site) {
		c := s.connect()
		if s.layout.client != mcp.Modern { // then it would listen, which keeps the server awake
			c.list()
		}
		c.get(100, "a__echo")
		const rounds = 5
		for id := range rounds {
			eventually(s.t, "a rest", s.rests)
			if answer := c.get(1+id, "a__echo"); strings.HasPrefix(answer, "!") {
				s.t.Fatalf("round %d: %s", id, answer)
			}
		}
		if n := countPart(s.noted(), `"name":"echo"`); n != rounds+1 {
			s.t.Errorf("%d calls ran, want %d", n, rounds+1)
		}
		if n := c.heardOf("list_changed"); n != 0 {
			s.t.Errorf("%d changes", n)
		}
		if text := s.log.String(); strings.Contains(text, `level=WARN msg="upstream`) {
			s.t.Error(text)
		}
	})
}
