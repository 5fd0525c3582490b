//go:build unix

package main

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// withModernClients runs a test with modern clients and upstreams of both eras, at
// each place.
func withModernClients(t *testing.T, l layout, test func(*site)) {
	l.core = true
	acrossEras(t, l, test, "legacy to modern: is of modern clients")
}

// D32: a modern client over HTTP closes a stream before its headers, one in its middle,
// and that of a listen. Others continue.
func TestD32_ClosedStreams(t *testing.T) {
	t.Parallel()
	withModernClients(t, layout{}, func(s *site) {
		c, other := s.connectOver("HTTP"), s.connectOver("HTTP")
		defer func() {
			if s.t.Failed() {
				s.t.Logf("the server noted:\n%s", strings.Join(lastOf(allNotedIn(s.record("a")), 12), "\n"))
			}
		}()
		other.call(1, "a__slow")
		s.awaitNoted("a", `"slow"`, 1)
		c.call(1, "a__hang")
		s.awaitNoted("a", `"hang"`, 1)
		c.cancel("1")
		s.awaitNoted("a", "notifications/cancelled", 1)
		c.callWithToken(2, "a__hang")
		eventually(s.t, "progress", func() bool { return c.heardOf("progress") == 1 })
		c.cancel("2")
		s.awaitNoted("a", "notifications/cancelled", 2)
		other.say(`{"jsonrpc":"2.0","id":9,"method":"resources/list"}`)
		other.await("9") // so that a is known to have the resource: a look-up takes what answers in 200 ms
		c.listen(3, `{"resourceSubscriptions":["fake://thing"]}`)
		c.cancel("3")
		end := "resources/unsubscribe"
		if s.layout.era == mcp.Modern {
			end = "notifications/cancelled"
		}
		eventually(s.t, "the end of the listen", func() bool {
			all := countPart(allNotedIn(s.record("a")), end)
			return all-countPart(s.noted(), "notifications/cancelled") == 1 || s.layout.era != mcp.Modern && all == 1
		})
		other.get(2, "a__release")
		if got := other.await("1"); got != fakeDone {
			s.t.Error("the other call got", got)
		}
		if n := c.count(func(string) bool { return true }); n != 1 || s.log.count("level=WARN") > s.log.count("listed by two upstreams") {
			s.t.Errorf("answers: %v; log:\n%s", c.answers, s.log)
		}
		noted := s.notedBy("a") // the look-up of the listen's URI may also have cancelled a list that was not needed any more
		if n := countPart(noted, "notifications/cancelled") - countPart(noted, "no longer needed"); n != 2 {
			s.t.Errorf("%d cancellations of calls; noted last:\n%s", n, strings.Join(lastOf(noted, 8), "\n"))
		}
	})
}

// D33: a modern server ends a stream without the response. A call that may have run is not
// sent again; a list may be, once.
func TestD33_LostStream(t *testing.T) {
	for _, wire := range []string{"WebSocket", "modern HTTP"} {
		lists := 0
		f := &scripted{modern: true, call: func(w http.ResponseWriter, _ *http.Request, _ *jsonrpc.Message) { events(w, ": at work") }}
		f.list = func(w http.ResponseWriter) bool {
			if lists++; lists == 1 {
				events(w, ": at work")
			}
			return lists > 1
		}
		s := newScriptedSite(t, f)
		c := s.connectOver(wire)
		if got := c.get(1, "x"); got != lost("a", "stream ended") {
			t.Errorf("%s: the call got %s", wire, got)
		}
		c.say(`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`)
		c.await("2")
		c.say(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`)
		if got := c.await("3"); !strings.Contains(got, `"name":"x"`) {
			t.Errorf("%s: the list got %s", wire, got)
		}
		if f.count("tools/call") != 1 {
			t.Errorf("%s: the server saw %v", wire, f.seen)
		}
	}
}

const expired = `"reason":"request_state_expired"`

// D39: the client does not answer a suspended call in time. The server is told once, and a
// later answer gets an error; the tool does not run again.
func TestD39_ParkExpires(t *testing.T) {
	t.Parallel()
	everyLegacyServer(t, layout{parkFor: 300 * time.Millisecond}, func(s *site) {
		c := s.connectOver("HTTP")
		c.call(1, "a__ask")
		eventually(s.t, "the question", func() bool { return c.questions() == 1 })
		s.awaitNoted("a", `"error":{"code":-32`, 1)
		c.accept()
		if got := c.await("1"); !strings.HasPrefix(got, `!{"code":-32602,`) || !strings.Contains(got, expired) {
			s.t.Error("who came back got", got)
		}
		s.awaitNoted("a", `"ask"`, 1)
		if n := countPart(s.noted(), "notifications/cancelled"); n != 0 { // the error is the only stimulus
			s.t.Error(n, "cancellations")
		}
	})
}

// everyLegacyServer runs a test with modern clients of legacy servers, at each place.
func everyLegacyServer(t *testing.T, l layout, test func(*site)) {
	l.client = mcp.Modern
	for _, l.place = range places {
		t.Run(l.place, func(t *testing.T) { test(newSite(t, l)) })
	}
}

// D39: a requestState from before a restart of the proxy, one of another client, and a used
// one. None of them runs the tool.
func TestD39_ForeignState(t *testing.T) {
	before, s := newSite(t, layout{client: mcp.Modern}), newSite(t, layout{client: mcp.Modern})
	ask := func(s *site, wire string) (*client, string) {
		c := s.connectOver(wire)
		c.call(1, "a__ask")
		eventually(t, "the question", func() bool { return c.questions() == 1 })
		return c, c.requestState()
	}
	_, old := ask(before, "HTTP")
	c, own := ask(s, "HTTP")
	_, others := ask(s, "WebSocket")
	ran := countPart(s.noted(), `"ask"`)
	retry := func(id int, state string) string {
		c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"a__ask","inputResponses":{"q1":{"action":"accept"}},"requestState":%s}}`, id, state))
		return c.await(strconv.Itoa(id))
	}
	tampered := own[:20] + map[bool]string{true: "B", false: "A"}[own[20] == 'A'] + own[21:]
	for i, state := range []string{old, others, tampered, `"x"`, `""`} {
		if got := retry(10+i, state); !strings.HasPrefix(got, `!{"code":-32602,`) {
			t.Errorf("state %d got %s", i, got)
		}
	}
	if got := retry(20, own); got != `{"action":"accept"}` {
		t.Error("its own state got", got)
	}
	c.say(`{"jsonrpc":"2.0","id":21,"method":"tools/call","params":{"name":"a__ask","inputResponses":{"q1":{"action":"decline"}},"requestState":` + own + `}}`)
	if got := c.await("21"); !strings.HasPrefix(got, `!{"code":-32602,`) {
		t.Error("a state that was used got", got)
	}
	if n := countPart(s.noted(), `"ask"`); n != ran {
		t.Errorf("the tool ran %d times, want %d", n, ran)
	}
}

// requestState returns the state of a call that waits for input.
func (c *client) requestState() string {
	w := c.wire.(*modernWire)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, in := range w.waiting {
		return string(in.state)
	}
	c.t.Helper()
	c.t.Fatal("no call waits for input")
	return ""
}

// D40: the server of a suspended call is killed. The client learns it when it answers, and not
// before.
func TestD40_KilledWhileParked(t *testing.T) {
	t.Parallel()
	everyLegacyServer(t, layout{}, func(s *site) {
		c := s.connectOver("HTTP")
		c.call(1, "a__ask")
		eventually(s.t, "the question", func() bool { return c.questions() == 1 })
		syscall.Kill(s.server(`"ask"`), syscall.SIGKILL)
		eventually(s.t, "the loss", func() bool { // the error of the request or of the session, whichever comes first
			return s.log.count("level=WARN")+s.log.count("upstream forgot the session") > 0
		})
		if n := c.count(func(string) bool { return true }); n != 1 || len(c.told) > 0 {
			s.t.Error("the client heard", c.answers, c.told)
		}
		c.accept()
		if got := c.await("1"); !s.killed(got) {
			s.t.Error("who came back got", got)
		}
		c.works(10, "a__echo")
		s.awaitNoted("a", `"ask"`, 1)
	})
}

// listening returns a site with three upstreams, and a client with a listen 1 on all.
func listening(t *testing.T, l layout) (*site, *client) {
	t.Helper()
	s := emptySite(t)
	s.layout = l
	text := "upstreams:\n"
	for _, name := range []string{"a", "b", "c"} {
		text += "  " + name + ": {" + s.upstream(name, "") + "}\n"
	}
	s.run(text)
	c := s.connectOver("HTTP")
	c.listen(1, `{"toolsListChanged":true}`)
	return s, c
}

// D41: one of three upstreams dies during a listen and comes back. The listen continues,
// and notifies once that the tools have changed.
func TestD41_ListenSurvives(t *testing.T) {
	t.Parallel()
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(string(era), func(t *testing.T) {
			s, c := listening(t, layout{client: mcp.Modern, era: era})
			c.get(2, "a__grow")
			eventually(t, "the change", func() bool { return c.heardOn(1, "tools/list_changed") == 1 })
			c.get(3, "a__crash")
			c.works(10, "a__echo")
			eventually(t, "the return", func() bool { return c.heardOn(1, "tools/list_changed") == 2 })
			c.get(4, "b__grow")
			eventually(t, "another's change", func() bool { return c.heardOn(1, "tools/list_changed") == 3 })
			c.get(5, "a__grow")
			eventually(t, "the change after the return", func() bool { return c.heardOn(1, "tools/list_changed") == 4 })
			if n := c.count(func(string) bool { return true }); c.heardOn(1, "acknowledged") != 1 || n == 0 || c.answers["1"] != nil {
				t.Errorf("the listen heard %v and ended with %s", c.told, c.answers["1"])
			}
			if n := s.log.count("level=WARN"); n != 1 {
				t.Errorf("%d warnings:\n%s", n, s.log)
			}
		})
	}
}

// D42: a drain ends a listen with its result.
func TestD42_DrainedListen(t *testing.T) {
	t.Parallel()
	for _, wire := range wiresOf(mcp.Modern) {
		for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
			t.Run(wire+"/"+string(era), func(t *testing.T) {
				s := newSite(t, layout{client: mcp.Modern, era: era})
				c := s.connectOver(wire)
				c.listen(1, `{"toolsListChanged":true}`)
				over := make(chan bool, 1)
				go func() {
					over <- s.shutdown(500*time.Millisecond) != nil
				}()
				if got := c.await("1"); got != `{"_meta":{"`+mcp.KeySubscription+`":1}}` {
					t.Error("the listen ended with", got)
				}
				if <-over {
					t.Error("the shutdown was forced")
				}
			})
		}
	}
}

// D50: a server is killed with 1000 calls. Each has one error, soon.
func TestD50_Thousand(t *testing.T) {
	t.Parallel()
	acrossEras(t, layout{top: "limits: {inFlight: 2000, sessions: 400}\n"}, func(s *site) {
		c := s.connect()
		for i := range 1000 {
			c.call(i, "a__hang")
		}
		s.awaitNoted("a", `"hang"`, 1000)
		began := time.Now()
		c.call(1000, "a__crash")
		eventually(s.t, "one error for each call", func() bool { return c.count(s.killed) == 1001 })
		if len(c.twice) > 0 {
			s.t.Error("answered twice:", c.twice)
		}
		s.t.Logf("after %v", time.Since(began))
		s.warnedOf(1001)
	})
}
