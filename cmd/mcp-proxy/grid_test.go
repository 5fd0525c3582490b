//go:build unix

package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// Reasons why some rows cannot be tested at a place.
var (
	noProcess = []string{"HTTP: a server of its own, whose process is not ours", "WebSocket: a server of its own, whose process is not ours"}
	sameLink  = []string{"TCP link: as behind a unix link", "WebSocket link: as behind a unix link"}
	noModern  = []string{"modern to legacy: of the legacy era", "modern to modern: of the legacy era"}
	noLines   = []string{"HTTP: has no lines that could be something else", "WebSocket: has no lines that could be something else"}
)

// lost returns the error of a call whose upstream has ended.
func lost(upstream, cause string) string {
	return closedBy(upstream, jsonrpc.ClosedError{Cause: jsonrpc.ParseCause(cause)}, jsonrpc.InFlight)
}

// closedBy returns the error of a call because of an end, with its event.
func closedBy(upstream string, end jsonrpc.ClosedError, at jsonrpc.Phase) string {
	end.Event = anEvent
	return "!" + string(end.Wire(-32603, upstream, at).Raw())
}

// anEvent replaces every event in texts that tests compare.
const anEvent = "anyevent"

var eventMember = regexp.MustCompile(`"event":"[0-9a-hjkmnp-tv-z]{8}"`)

// sameEvent replaces the event of an error by anEvent, if it is a valid one.
func sameEvent(text []byte) []byte {
	return eventMember.ReplaceAllLiteral(text, []byte(`"event":"`+anEvent+`"`))
}

// ending returns what a call gets when its client's connection ends.
func (s *site) ending() string {
	code := jsonrpc.CodeConnectionClosed
	if s.layout.client == mcp.Modern {
		code = jsonrpc.CodeInternalError
	}
	return "!" + string(jsonrpc.ConnectionClosed(code, "", jsonrpc.Cause{}, jsonrpc.InFlight).Raw())
}

// awaitNoted waits until the servers of an upstream have noted part n times.
func (s *site) awaitNoted(upstream, part string, n int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%d times %s at %s", n, part, upstream), func() bool {
		return countPart(s.notedBy(upstream), part) >= n
	})
	if got := countPart(s.notedBy(upstream), part); got != n {
		s.t.Errorf("%s came %d times to %s, want %d; noted last:\n%s", part, got, upstream, n, strings.Join(lastOf(s.notedBy(upstream), 8), "\n"))
	}
}

func lastOf(lines []string, n int) []string { return lines[max(len(lines)-n, 0):] }

// D01: a client leaves with calls on two upstreams, another one stays.
func TestD01_ClientLeavesOthers(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		stays, leaves := s.connect(), s.connectOver("stdio")
		stays.call(1, "a__slow")
		s.awaitNoted("a", `"slow"`, 1)
		leaves.call(1, "a__hang")
		leaves.call(2, "a__hang")
		leaves.call(3, "b__hang")
		s.awaitNoted("a", `"hang"`, 2)
		s.awaitNoted("b", `"hang"`, 1)
		leaves.vanish()
		s.awaitNoted("a", "notifications/cancelled", 2)
		s.awaitNoted("b", "notifications/cancelled", 1)
		stays.get(2, "a__release")
		if got := stays.await("1"); got != fakeDone {
			t.Error("the other client's call got", got)
		}
		if leaves.count(func(string) bool { return true }) != 1 {
			t.Error("the client that left got", leaves.answers)
		}
	})
}

// D03: calls that do not finish within the drain after a half-close fail; a question fails at
// once, since no client can answer it any more.
func TestD03_HalfClose(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{top: "drain: 300ms\n"}, func(s *site) {
		c := s.connectOver("stdio")
		if s.layout.client != mcp.Modern { // in that era a question is an answer
			c.call(2, "a__ask")
			eventually(s.t, "the question", func() bool { return c.questions() == 1 })
		}
		c.call(1, "a__hang")
		s.awaitNoted("a", `"hang"`, 1)
		c.closeStdin()
		if s.layout.client != mcp.Modern {
			// The server receives the error at once, and answers its call; for a modern server,
			// the translation answers.
			want := `!{"code":-32000,`
			if s.layout.era == mcp.Modern {
				want = noInput
			}
			if got := c.await("2"); !strings.Contains(got, want) {
				s.t.Error("the call that asked got", got)
			}
		}
		if got := c.await("1"); got != s.ending() {
			s.t.Error("the call that hangs got", got)
		}
		s.awaitNoted("a", "notifications/cancelled", 1)
	}, sameLink...)
}

// D07: three clients have calls on an upstream that is killed.
func TestD07_ThreeClients(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		var clients []*client
		for i := range 3 {
			c := s.connect()
			c.call(1, "a__slow")
			c.call(2, "a__slow")
			s.awaitNoted("a", `"slow"`, 2*(i+1))
			clients = append(clients, c)
		}
		clients[0].call(3, "a__crash")
		for i, c := range clients {
			if i > 0 && !s.layout.oneServer() {
				c.get(3, "a__release")
			}
			for _, id := range []string{"1", "2"} {
				if got := c.await(id); (i == 0 || s.layout.oneServer()) != s.killed(got) {
					s.t.Errorf("call %s of client %d got %s", id, i, got)
				}
			}
		}
		for _, c := range clients {
			c.works(10, "a__echo")
		}
	})
}

// D08: a server exits with calls in flight.
func TestD08_Exit(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		c := s.connect()
		for i, tool := range []string{"a__leave", "a__exit"} {
			c.call(i*1000, "a__hang")
			c.call(i*1000+2, "b__slow")
			s.awaitNoted("a", `"hang"`, i+1) // over HTTP, calls may overtake each other
			s.awaitNoted("b", `"slow"`, i+1)
			c.call(i*1000+1, tool)
			want := lost("a", []string{"exit status 0", "exit status 3"}[i])
			for _, id := range []string{strconv.Itoa(i * 1000), strconv.Itoa(i*1000 + 1)} {
				if got := c.await(id); got != want && !(s.layout.remote() && s.killed(got)) {
					s.t.Errorf("%s: got %s, want %s", tool, got, want)
				}
			}
			c.get(i*1000+3, "b__release")
			c.await(strconv.Itoa(i*1000 + 2))
			c.works(i*1000+4, "a__echo")
		}
	})
}

// D09: the server has exited, but a child of it holds its stdout.
func TestD09_GrandchildHoldsStdout(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		c := s.connect()
		child := grandchild(s.t, c)
		if got := c.get(2, "a__exit"); got != lost("a", "exit status 3") {
			s.t.Error("got", got)
		}
		eventually(s.t, "the grandchild's end", func() bool { return ended(child) })
		c.works(10, "a__echo")
	}, append(sameLink, noProcess...)...)
}

// D10: a server closes its stdout and keeps running.
func TestD10_ClosedStdout(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		c := s.connect()
		c.call(1, "b__slow")
		s.awaitNoted("b", `"slow"`, 1)
		if got := c.get(2, "a__close"); got != lost("a", "stdout closed") {
			s.t.Error("got", got)
		}
		pid := s.server(`"close"`)
		eventually(s.t, "the server's end", func() bool { return gone(pid) })
		c.get(3, "b__release")
		c.await("1")
		c.works(10, "a__echo")
	}, append(sameLink, noProcess...)...)
}

// D11: an upstream does not answer in time, which is not its end.
func TestD11_RequestTimeout(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{a: ", requestTimeout: 300ms"}, func(s *site) {
		c := s.connect()
		if got, want := c.get(1, "a__late"), "!"+string(jsonrpc.TimedOut("a").Raw()); got != want {
			s.t.Errorf("got %s, want %s", got, want)
		}
		s.awaitNoted("a", `"reason":"timeout"`, 1) // a list that took as long may have been cancelled, too
		c.get(2, "a__echo")
		if len(c.twice) > 0 || s.log.count("level=WARN") > 0 || s.layout.era != mcp.Modern && countPart(s.noted(), `"initialize"`) != 1 {
			s.t.Errorf("answered twice: %v; log:\n%s", c.twice, s.log)
		}
	}, sameLink...)
}

// D12: a server stops reading.
func TestD12_StoppedReading(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{a: ", writeTimeout: 1s"}, func(s *site) {
		c := s.connect()
		c.call(140, "a__plug")
		s.awaitNoted("a", `"plug"`, 1)
		for i := range 40 { // more than a pipe holds
			c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"a__echo","arguments":{"x":%q}}}`, 100+i, strings.Repeat("x", 10000)))
		}
		c.get(2, "b__echo")
		for i := range 41 {
			if got := c.await(strconv.Itoa(100 + i)); got != lost("a", "write timeout") {
				s.t.Errorf("call %d got %.100s", i, got)
			}
		}
		c.works(1000, "a__echo")
	}, append(sameLink, noProcess...)...)
}

// heardFarewell checks that the one call in flight was cancelled at an end by force.
func (s *site) heardFarewell() {
	s.t.Helper()
	s.awaitNoted("a", "notifications/cancelled", 1)
}

// noInput is part of the result of a modern server's call whose question no client can answer.
const noInput = `"isError":true`

// D15: during the drain calls finish, with the questions that they ask, and new
// ones are refused. Calls that do not finish fail.
func TestD15_DrainEverywhere(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		c := s.connect()
		c.call(2, "a__ask")
		eventually(s.t, "the question", func() bool { return c.questions() == 1 })
		c.call(1, "a__hang")
		s.awaitNoted("a", `"hang"`, 1)
		over := make(chan bool, 1)
		go func() {
			over <- s.shutdown(500*time.Millisecond) != nil
		}()
		for id := 10; !strings.Contains(c.get(id, "a__echo"), "not_sent"); id++ {
		}
		c.accept()
		want := `{"action":"accept"}`
		if s.layout.client == mcp.Modern { // it would be a new request
			want = "!" + string(jsonrpc.ConnectionClosed(-32603, "", jsonrpc.Cause{}, jsonrpc.NotSent).Raw())
		}
		if got := c.await("2"); got != want {
			s.t.Error("the call that asked got", got)
		}
		if got := c.await("1"); got != s.ending() {
			s.t.Error("the call that hangs got", got)
		}
		if <-over {
			s.t.Error("the shutdown was forced")
		}
		s.heardFarewell()
	}, sameLink...)
}
