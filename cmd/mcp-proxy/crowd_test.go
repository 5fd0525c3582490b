//go:build unix

package main

import (
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// One step beyond the bound, each request gets the one error and the log a line;
// other clients are not affected.
func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		within := inside[link.Client](s.proxy, "local", "client")
		if s.layout.linked() {
			inside[link.Client](s.proxy, "links", "all", "0", "client").SetStreams(2)
		}
		within.SetStreams(2)
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

// If the link within the process ends, for any reason, it is a lost link and not
// the end of the proxy.
func TestLinkWithinLost(t *testing.T) {
	s := newSite(t)
	c := s.connect()
	c.call(1, "a__hang")
	s.awaitNoted("a", `"hang"`, 1)
	near, far := link.Ring() // replaces it
	var other sync.WaitGroup
	other.Go(func() { (*inside[*link.Server](s.proxy, "host", "server")).Serve(t.Context(), far) })
	other.Go(func() { inside[link.Client](s.proxy, "local", "client").Serve(t.Context(), near) })
	if got := c.await("1"); got != lost("a", "link lost") {
		t.Error("the call got", got)
	}
	other.Wait() // the next one has replaced it
	c.works(10, "a__echo")
	c.works(20, "b__echo")
	if n := s.log.count("link within the process lost"); n != 1 {
		t.Errorf("%d lines say so:\n%s", n, s.log)
	}
}
