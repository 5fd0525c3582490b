//go:build unix

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// D06: a client vanishes with calls on two upstreams, and an open question. Its calls are
// cancelled; the question of a suspended call gets only an error.
func TestD06_VanishedAcrossEras(t *testing.T) {
	t.Parallel()
	otherWires(t, layout{idle: 200 * time.Millisecond, parkFor: 200 * time.Millisecond}, func(s *site, wire string) {
		c := s.connectOver(wire)
		vanishAcross(s, c, c.vanish)
		if s.log.count("level=WARN") > 0 {
			s.t.Errorf("log:\n%s", s.log)
		}
		told := 0
		if wire == "HTTP" { // a POST must end
			told = 100
		}
		if got := c.count(func(a string) bool { return a == s.ending() }); got != told {
			s.t.Errorf("%d calls were ended, want %d", got, told)
		}
	})
}

// D29: a client over HTTP vanishes without a DELETE, and its session expires.
func TestD29_ExpiredAcrossEras(t *testing.T) {
	t.Parallel()
	s := newSite(t, layout{era: mcp.Modern, top: "sessionIdle: 3s\n"})
	c := s.connectOver("HTTP")
	vanishAcross(s, c, c.wire.(*httpWire).abandon)
}

// vanishAcross lets a client vanish with 99 calls, which the server answers nevertheless, and
// an open question.
func vanishAcross(s *site, c *client, vanish func()) {
	s.t.Helper()
	c.call(1, "b__ask")
	eventually(s.t, "a question", func() bool { return c.questions() == 1 })
	for i := range 99 {
		c.call(100+i, "a__late")
	}
	s.awaitNoted("a", `"late"`, 99)
	vanish()
	suspended := 0 // calls at the server that wait for an answer to a question
	if s.layout.era != mcp.Modern {
		suspended = 1
	}
	s.awaitNoted("a", "notifications/cancelled", 99)
	s.awaitNoted("b", `"error":{"code":-32`, suspended)
	eventually(s.t, "no process", s.settled)
	if n := countPart(s.notedBy("b"), "notifications/cancelled"); n != 0 {
		s.t.Errorf("what was suspended was cancelled, too, %d times", n)
	}
}

// Everything that the eras have in common works between any two.
func TestErasUse(t *testing.T) {
	t.Parallel()
	otherWires(t, layout{}, func(s *site, wire string) {
		c := s.connectOver(wire)
		if s.layout.client == mcp.Modern {
			useModern(c, "a__")
			return
		}
		c.call(1, "a__ask")
		eventually(s.t, "the question", func() bool { return c.questions() == 1 })
		c.accept()
		if got := c.await("1"); got != `{"action":"accept"}` {
			s.t.Error("ask got", got)
		}
	})
}

// A legacy server never receives what only the modern era has, nor a modern one what
// only the legacy era has, except for the probe of its era.
func TestErasStayApart(t *testing.T) {
	t.Parallel()
	for _, pin := range []bool{false, true} {
		acrossEras(t, layout{core: !pin, pin: pin}, func(s *site) {
			c := s.connect()
			c.callWithToken(1, "a__notify")
			c.await("1")
			c.get(2, "a__echo")
			others := 0
			for _, line := range s.noted() {
				_, message, _ := strings.Cut(line, " ")
				modern := strings.Contains(message, mcp.KeyVersion)
				legacy := message != "end" && !modern && strings.Contains(message, `"id":`)
				if s.layout.era == mcp.Modern && legacy || s.layout.era != mcp.Modern && modern {
					others++
				}
			}
			if s.layout.client == s.layout.era && others > 0 || pin && others > 0 || others > 1 {
				s.t.Errorf("%d messages of the other era:\n%s", others, strings.Join(s.noted(), "\n"))
			}
		})
	}
}
