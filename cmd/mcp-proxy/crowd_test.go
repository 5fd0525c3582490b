//go:build unix

package main

import (
	"sync"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/upstream/link"
)

// The bound of streams is what the configuration allows, and so it stays when that
// changes; those on what was removed are still ending then.
func TestStreamsFollowConfig(t *testing.T) {
	s := newSite(t, layout{top: "limits: {sessions: 3000}\n"})
	if got := s.engine.link.Streams; got != 3000*2*2 {
		t.Errorf("%d streams for 3000 sessions, 2 upstreams and 2 eras", got)
	}
	cfg := s.load("mcp-proxy.yaml", "upstreams: {a: {command: fakeserver}, c: {command: fakeserver}, d: {command: fakeserver}}\n", false)
	if err := s.engine.adopt(cfg); err != nil {
		t.Fatal(err)
	}
	if got := s.engine.link.Streams; got != 3000*(3+2)*2 {
		t.Errorf("%d streams for 3000 sessions and 2 eras, when 1 upstream has changed, 1 has gone and 2 have come", got)
	}
	for sessions, want := range map[int]int{256: 4096, 3000: 2 * 3000 * 2} {
		h, err := newHosting(&config.Config{Limits: config.Limits{Sessions: sessions}, Upstreams: []config.Upstream{{Name: "a", Command: "a"}}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		h.force()
		if got := h.server.Streams; got < want {
			t.Errorf("a host takes %d streams for %d sessions, want at least %d", got, sessions, want)
		}
	}
}

// One step beyond the bound, each request gets the one error and the log a line;
// nobody else notices.
func TestTooManyStreams(t *testing.T) {
	everywhere(t, layout{}, func(s *site) {
		if s.layout.linked() {
			for _, f := range s.engine.far.all {
				f.client.SetStreams(2)
			}
		}
		s.engine.link.SetStreams(2)
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

// If the link within the process ends, whatever the reason, it is a lost link and not
// the end of the proxy.
func TestLinkWithinLost(t *testing.T) {
	s := newSite(t)
	c := s.connect()
	c.call(1, "a__hang")
	s.awaitNoted("a", `"hang"`, 1)
	near, far := link.Ring() // takes its place
	var other sync.WaitGroup
	other.Go(func() { s.engine.near.server.Serve(t.Context(), far) })
	other.Go(func() { s.engine.link.Serve(t.Context(), near) })
	if got := c.await("1"); got != lost("a", "link lost") {
		t.Error("the call got", got)
	}
	other.Wait() // the next has taken its place
	c.works(10, "a__echo")
	c.works(20, "b__echo")
	if n := s.log.count("link within the process lost"); n != 1 {
		t.Errorf("%d lines say so:\n%s", n, s.log)
	}
}
