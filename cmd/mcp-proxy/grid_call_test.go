//go:build unix

package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// callWithToken calls a tool with a progress token.
func (c *client) callWithToken(id int, tool string) {
	c.t.Helper()
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"_meta":{"progressToken":"t"}}}`, id, tool))
}

// D17 to D19, D22, D23, D26: a cancelled call gets no answer, and a late answer does not
// reach a later call with the same id and token.
func TestD18_Cancelled(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		c := s.connect()
		c.callWithToken(1, "a__late")
		s.awaitNoted("a", `"late"`, 1)
		c.cancel("1")
		s.awaitNoted("a", "notifications/cancelled", 1)
		for range 2 {
			c.callWithToken(1, "a__echo")
			if got := c.await("1"); !strings.Contains(got, "structuredContent") {
				s.t.Error("the second call of the id got", got)
			}
			c.mu.Lock()
			delete(c.answers, "1")
			c.mu.Unlock()
		}
		for _, id := range []string{"1", "99", "null", "true", `"1"`, "[1]", "{}"} { // ids of a finished call, of an unknown one, and none
			c.cancel(id)
		}
		c.get(2, "a__echo")
		if n := countPart(s.noted(), "notifications/cancelled"); n != 1 || len(c.twice) > 0 || c.heardOf("progress") > 0 {
			s.t.Errorf("%d cancellations; answered twice: %v; told: %v", n, c.twice, c.told)
		}
	})
}

// D19, G: a server answers twice.
func TestD19_AnsweredTwice(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		c := s.connect()
		if got := c.get(1, "a__twice"); got != fakeDone {
			s.t.Error("got", got)
		}
		c.get(2, "a__echo")
		if len(c.twice) > 0 {
			s.t.Error("answered twice:", c.twice)
		}
	})
}

// D20: initialize cannot be cancelled.
func TestD20_CancelledInitialize(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		c := s.join("WebSocket")
		c.say(initialize)
		c.cancel("0")
		if got := c.await("0"); strings.HasPrefix(got, "!") {
			s.t.Error("got", got)
		}
		c.get(1, "a__echo")
		if countPart(s.noted(), "notifications/cancelled") > 0 {
			s.t.Error("the server got", s.noted())
		}
	}, noModern...)
}

// D21: a client leaves while an upstream starts.
func TestD21_LeftDuringInitialize(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{env: `FAKE_MUTE: "1"`}, func(s *site) {
		for i, wire := range []string{"stdio", "WebSocket"} {
			c := s.join(wire)
			c.say(initialize)
			if s.layout.place != "shared" || i == 0 {
				s.awaitNoted("a", `"initialize"`, i+1)
			}
			c.vanish()
		}
		if !s.layout.oneServer() {
			s.awaitNoted("a", " end", 2)
		}
		eventually(s.t, "no process", s.settled)
		if countPart(s.noted(), "notifications/cancelled") > 0 || s.log.count("level=WARN") > 0 {
			s.t.Errorf("the server got %v; log:\n%s", s.noted(), s.log)
		}
	}, noModern...)
}

// D23: progress and messages reach only the client of their call.
func TestD23_Progress(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		a, b := s.connect(), s.connect()
		a.say(`{"jsonrpc":"2.0","id":"level","method":"logging/setLevel","params":{"level":"info"}}`)
		a.await("level")
		b.say(`{"jsonrpc":"2.0","id":"level","method":"logging/setLevel","params":{"level":"emergency"}}`)
		b.await("level")
		b.callWithToken(1, "a__slow")
		s.awaitNoted("a", `"slow"`, 1)
		a.callWithToken(1, "a__notify")
		a.await("1")
		said := 1
		if s.layout.era == mcp.Modern && s.layout.place != "HTTP" { // the server does not say for which of both clients with calls a message is
			said = 0
		}
		if a.heardOf(`notifications/progress {"progressToken":"t","progress":1}`) != 1 || a.heardOf(`"said"`) != said {
			s.t.Error("who called heard", a.told)
		}
		b.get(2, "a__release")
		b.await("1")
		a.callWithToken(2, "a__notify")
		if a.await("2"); a.heardOf(`"said"`) != said+1 {
			s.t.Error("who called while nobody else did heard", a.told)
		}
		if b.heardOf("progress") > 0 {
			s.t.Error("who did not call heard", b.told)
		}
	})
}

// D25: an id that is in use. The error has no id, so that it does not answer the first call.
func TestD25_DuplicateID(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		c := s.connect()
		c.call(1, "a__slow")
		s.awaitNoted("a", `"slow"`, 1)
		c.call(1, "a__slow")
		c.get(2, "a__release")
		if got := c.await("1"); got != fakeDone {
			s.t.Error("the first call got", got)
		}
		if c.count(func(a string) bool { return strings.HasPrefix(a, `!{"code":-32600`) }) != 1 || len(c.twice) > 0 {
			s.t.Error("answers:", c.answers)
		}
		s.awaitNoted("a", `"slow"`, 1)
	})
}

// D43: lines that are no messages, and an invalid answer.
func TestD43_Garbage(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		c := s.connect()
		c.call(1, "a__slow")
		s.awaitNoted("a", `"slow"`, 1)
		for i := range 3 {
			if got := c.get(10+i, "a__garbage"); got != fakeDone {
				s.t.Error("the call with the banner got", got)
			}
		}
		if got := c.get(2, "a__wrong"); !strings.HasPrefix(got, `!{"code":-32603,`) || !strings.Contains(got, "invalid_response") {
			s.t.Error("the call with the bad answer got", got)
		}
		c.get(3, "a__release")
		if got := c.await("1"); got != fakeDone {
			s.t.Error("the other call got", got)
		}
		if s.log.count("level=WARN") != 1 {
			s.t.Errorf("want one warning:\n%s", s.log)
		}
	}, noLines...)
}

// D46: one upstream does not answer lists, then none does.
func TestD46_HungList(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{top: "listTimeout: 200ms\n"}, func(s *site) {
		c := s.connect()
		list := func(id int) string {
			c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/list"}`, id))
			return c.await(strconv.Itoa(id))
		}
		id, both, one := 10, "", ""
		eventually(s.t, "both lists", func() bool { // a slow machine needs longer than the timeout
			id++
			both = list(id)
			return strings.Contains(both, `"a__echo"`) && strings.Contains(both, `"b__echo"`)
		})
		c.get(2, "a__mute")
		before := countPart(s.noted(), "notifications/cancelled")
		muted := id
		eventually(s.t, "the list of one", func() bool {
			id++
			one = list(id)
			if strings.Contains(one, `"a__echo"`) {
				s.t.Error("one hangs: got", one)
			}
			return strings.Contains(one, `"b__echo"`)
		})
		s.awaitNoted("a", "notifications/cancelled", before+id-muted)
		c.get(4, "b__mute")
		if got := list(5); !strings.HasPrefix(got, "!") {
			s.t.Error("all hang: got", got)
		}
		c.get(6, "a__echo")
	}, sameLink...)
}

// D47: a notification to an upstream that has ended.
func TestD47_LostNotification(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		c := s.connect()
		if got := c.get(1, "a__crash"); !s.killed(got) {
			s.t.Error("got", got)
		}
		c.say(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`)
		c.get(2, "b__echo")
		if n := c.count(func(string) bool { return true }); n != 3 {
			s.t.Error("answers:", c.answers)
		}
	}, noModern...)
}

// D48: an upstream cannot start, or ends before it has answered initialize. The
// others work.
func TestD48_CannotStart(t *testing.T) {
	t.Parallel()
	for start, end := range map[string]jsonrpc.ClosedError{
		"./none":  {Cause: jsonrpc.CauseStartFailed, Says: "did not start: command not found", Lasting: true},
		`"false"`: {Cause: jsonrpc.CauseStartFailed, Says: "did not start: exit status 1"},
	} {
		everywhere(t, layout{start: start}, func(s *site) { cannotStart(s, end) }, noProcess...)
	}
	for _, place := range places {
		if l := (layout{place: place, start: freeAddress(t)}); l.remote() {
			t.Run(place, func(t *testing.T) {
				cannotStart(newSite(t, l), jsonrpc.ClosedError{Cause: jsonrpc.CauseConnectionRefused})
			})
		}
	}
}

func cannotStart(s *site, end jsonrpc.ClosedError) {
	c := s.connect()
	c.get(1, "b__echo")
	got := c.get(2, "a__echo")
	if want := closedBy("a", end, jsonrpc.NotSent); got != want {
		s.t.Errorf("got  %s\nwant %s", got, want)
	}
	// Each start has its warning: one at initialize, one at the call. A missing command has had
	// one before.
	eventually(s.t, "two warnings", func() bool { return s.log.count("level=WARN")-s.log.count("msg=configuration") == 2 })
}

// D49: answers that come at the moment when their calls time out.
func TestD49_TimeoutRace(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{a: ", requestTimeout: 200ms"}, func(s *site) {
		c := s.connect()
		id := 200
		eventually(s.t, "the server", func() bool { id++; return !strings.HasPrefix(c.get(id, "a__echo"), "!") })
		before := countPart(s.noted(), "notifications/cancelled")
		for i := range 40 {
			c.call(i, "a__slow")
			time.Sleep(2 * time.Millisecond)
		}
		time.Sleep(115 * time.Millisecond)
		timedOut, timeouts := "!"+string(jsonrpc.TimedOut("a").Raw()), 0
		if c.get(100, "a__release") == timedOut { // on a slow machine
			timeouts++
		}
		for i := range 40 {
			switch got := c.await(strconv.Itoa(i)); got {
			case timedOut:
				timeouts++
			case fakeDone:
			default:
				s.t.Error("got", got)
			}
		}
		// A shared session, or a translation, knows what the server has answered meanwhile, and
		// does not cancel that.
		knows := s.layout.oneServer() || s.layout.client == mcp.Modern || s.layout.era == mcp.Modern
		if !knows {
			s.awaitNoted("a", "notifications/cancelled", before+timeouts)
		} else if n := countPart(s.noted(), "notifications/cancelled"); n > before+timeouts {
			s.t.Errorf("%d cancellations, %d timeouts", n, timeouts)
		}
		if len(c.twice) > 0 {
			s.t.Error("answered twice:", c.twice)
		}
		s.t.Logf("%d of 41 timed out", timeouts)
	}, sameLink...)
}

// Notifications of an upstream about itself reach all clients that follow it.
func TestListChangedAndUpdated(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		a, b := s.connect(), s.connect()
		a.follow(`,"resourceSubscriptions":["fake://thing"]`)
		b.follow("")
		a.get(3, "a__grow")
		eventually(s.t, "list_changed", func() bool { return a.heardOf("tools/list_changed") == 1 })
		if s.layout.place == "shared" || s.layout.era == mcp.Modern {
			eventually(s.t, "list_changed for all", func() bool { return b.heardOf("tools/list_changed") == 1 })
		}
		a.get(4, "a__update")
		eventually(s.t, "updated", func() bool { return a.heardOf("resources/updated") == 1 && a.heardOf(`"fake://thing"`) > 0 })
		b.get(4, "a__update")
		b.get(5, "a__echo")
		if b.heardOf("resources/updated") > 0 && (s.layout.place == "shared" || s.layout.client == mcp.Modern || s.layout.era == mcp.Modern) {
			s.t.Error("who has not subscribed heard", b.told)
		}
		a.get(5, "a__grown1")
	})
}

// follow subscribes to changes of the tools, and of what more names, the rest of a
// filter.
func (c *client) follow(more string) {
	c.t.Helper()
	if _, modern := c.wire.(*modernWire); modern {
		c.listen(1, `{"toolsListChanged":true`+more+`}`)
		return
	}
	c.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	c.await("1")
	if more == "" {
		return
	}
	c.say(`{"jsonrpc":"2.0","id":2,"method":"resources/subscribe","params":{"uri":"fake://thing"}}`)
	if got := c.await("2"); got != "{}" {
		c.t.Error("subscribe:", got)
	}
}
