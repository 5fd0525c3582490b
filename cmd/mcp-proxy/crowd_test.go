//go:build unix

package main

import (
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// One step beyond the bound, each request gets the one error and the log a line;
// other clients are not affected.
func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		if s.layout.linked() { // the control stream counts, too
			(*inside[*link.Server](s.far.host, "half", "server")).SetStreams(3)
		}
		(*inside[*link.Local](s.proxy, "local")).SetStreams(2)
		first := s.connect()
		first.works(10, "a__echo")
		first.works(20, "b__echo")
		other := s.connect()
		for id, tool := range []string{"a__echo", "b__echo", "a__echo"} {
			overloaded := string(jsonrpc.Overloaded(tool[:1]).Raw())
			if got := other.get(id+1, tool); got != "!"+overloaded {
				t.Errorf("call %d got %s, want %s", id+1, got, overloaded)
			}
		}
		first.works(30, "a__echo")
		if n := s.log.count("too many streams"); n != 1 {
			t.Errorf("%d lines say so:\n%s", n, s.log)
		}
		first.wire.vanish()
		other.works(40, "a__echo")
		other.works(50, "b__echo")
	})
}
