//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// D07, D50: 200 calls on an upstream that is killed, 50 on another.
func TestD07_KilledUpstream(t *testing.T) {
	t.Parallel()
	everyWire(t, killUpstream)
	otherWires(t, layout{}, killUpstream)
}

// everyWire runs a test with legacy clients on each wire and upstreams at each place, but
// with only one wire for places that differ in the link alone. The oldest wire has one place.
func everyWire(t *testing.T, test func(s *site, wire string)) {
	for _, wire := range wiresOf(mcp.Legacy) {
		t.Run(wire, func(t *testing.T) {
			switch wire {
			case "SSE":
				test(newSite(t), wire)
			case "stdio":
				everyPlace(t, layout{}, func(s *site) { test(s, wire) })
			default:
				everyPlace(t, layout{}, func(s *site) { test(s, wire) }, sameLink...)
			}
		})
	}
}

// otherWires is everyWire for the other pairs of eras: one place has all wires of the
// clients, each other place has one of them.
func otherWires(t *testing.T, l layout, test func(s *site, wire string)) {
	for _, pair := range otherPairs {
		l.client, l.era = pair.client, pair.era
		names := wiresOf(l.client)
		run := func(wire, place string) {
			l.place = place
			t.Run(l.pair()+"/"+wire+"/"+place, func(t *testing.T) { test(newSite(t, l), wire) })
		}
		for _, wire := range names {
			run(wire, "local")
		}
		for i, place := range places[1:] {
			run(names[i%len(names)], place)
		}
	}
}

func killUpstream(s *site, wire string) {
	t, c := s.t, s.connectOver(wire)
	c.get(3000, "a__echo") // the names are known from here on
	c.get(3001, "b__echo")
	for i := range 200 {
		c.call(i, "a__hang")
	}
	asks := 50
	if s.layout.ownProcess() { // after the first, the proxy knows that calls need their own
		asks = 3
		if s.layout.place == "shared" {
			asks = 1
		}
		c.call(3002, "b__ask")
		eventually(t, "a question", func() bool { return c.questions() == 1 })
		c.accept()
		c.await("3002")
	}
	for i := range asks {
		c.call(1000+i, "b__ask")
	}
	eventually(t, "200 calls and the questions", func() bool {
		return c.questions() == asks && countPart(s.noted(), `"hang"`) == 200
	})
	c.call(500, "a__crash")
	eventually(t, "one error for each call", func() bool { return c.count(s.killed) == 201 })
	c.accept()
	for i := range asks {
		if got := c.await(strconv.Itoa(1000 + i)); got != `{"action":"accept"}` {
			t.Error("the other upstream answered", got)
		}
	}
	s.warnedOf(201 + c.works(2000, "a__echo"))
	if len(c.twice) > 0 {
		t.Error("answered twice:", c.twice)
	}
}

// killed reports whether an answer is the error of a call whose server was
// killed.
func (s *site) killed(answer string) bool {
	causes := []string{"signal: killed"}
	if s.layout.remote() { // as seen on this connection
		causes = []string{"connection lost", "connection reset", "connection refused", "HTTP 404"}
	}
	return slices.ContainsFunc(causes, func(cause string) bool {
		return answer == lost("a", cause)
	})
}

// warnedOf checks that one warning reports a lost server and its calls. For a remote server the
// warning comes when requests stop trying to reach it. An attempt to reach it before it is back
// has a warning of its own.
func (s *site) warnedOf(calls int) {
	s.t.Helper()
	told := 0
	good := func() bool {
		told = s.log.count("level=WARN")
		if s.layout.remote() {
			told -= s.log.count("upstream failed to start") + s.log.count("cannot determine the upstream's era")
		}
		if !s.layout.remote() {
			return told == 1 && s.log.count(fmt.Sprintf("in_flight=%d ", calls)) == 1
		}
		sum := 0
		for line := range strings.Lines(s.log.String()) {
			if _, n, ok := strings.Cut(line, "requests="); ok {
				n, _ := strconv.Atoi(strings.Fields(n)[0])
				sum += n
			}
		}
		return told == 1 && sum <= calls // the others lost their session, which is reported, too
	}
	for end := time.Now().Add(10 * time.Second); !good(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Errorf("want one warning that says %d:\n%s", calls, s.log)
			return
		}
	}
}

// D01, D05, D06, D35 to D37: a client vanishes with calls and a question open.
func TestD06_VanishedClient(t *testing.T) {
	t.Parallel()
	everyWire(t, func(s *site, wire string) {
		c, left := vanishing(s, wire)
		c.vanish()
		left()
		told := c.count(func(a string) bool { return a == s.ending() })
		if want := map[string]int{"HTTP": 200}[wire]; told != want { // a POST must end
			t.Errorf("%d calls were ended, want %d", told, want)
		}
	})
}

// D29: a client over HTTP vanishes without a DELETE, and its session expires. Under load it must not do so earlier, between two
// requests.
func TestD29_ExpiredClient(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{top: "sessionIdle: 3s\n"}, func(s *site) {
		c, left := vanishing(s, "HTTP")
		c.wire.(*httpWire).abandon()
		left()
	}, append(append(sameLink, "legacy to modern: is below"), noModern...)...)
}

// vanishing returns a client with 99 calls and one with a question on an upstream, and 100 calls on
// another one. left checks the state after the client has left.
func vanishing(s *site, wire string) (c *client, left func()) {
	t := s.t
	t.Helper()
	c = s.connectOver(wire)
	for i := range 100 {
		c.call(1000+i, "b__hang")
	}
	child := 0
	if !s.layout.remote() {
		child = grandchild(t, c)
	}
	c.call(99, "a__ask")
	eventually(t, "a question", func() bool { return c.questions() == 1 })
	for i := range 99 {
		c.call(100+i, "a__hang")
	}
	eventually(t, "99 calls", func() bool { return countPart(s.noted(), `"hang"`) == 99 })
	return c, func() {
		t.Helper()
		s.clearedUp()
		if !s.layout.oneServer() {
			pid := s.server(`"ask"`)
			eventually(t, "process and grandchild gone", func() bool { return gone(pid) && ended(child) })
		}
		eventually(t, "no process", s.settled)
		ends := 1
		if wire == "modern HTTP" { // it has no connection
			ends = 0
		}
		// The session says so after its servers have heard of it.
		eventually(t, "a line for the end", func() bool { return s.log.count("client disconnected") >= ends })
		if s.log.count("level=WARN") != 0 || s.log.count("client disconnected") != ends {
			t.Errorf("want %d lines, and no warning:\n%s", ends, s.log)
		}
	}
}

// grandchild returns the process id of a process that a server of a has started.
func grandchild(t *testing.T, c *client) int {
	t.Helper()
	var child struct {
		StructuredContent struct{ Pid int }
	}
	if err := json.Unmarshal([]byte(c.get(1, "a__grandchild")), &child); err != nil {
		t.Fatal(err)
	}
	return child.StructuredContent.Pid
}

// clearedUp checks what the server of a receives when a client leaves it with 100 calls, the first
// of which has asked something: first the answer to the question, and nothing else for that call,
// then cancellations of the others.
func (s *site) clearedUp() {
	t := s.t
	t.Helper()
	heard := func() (lines []string, cancels int) {
		noted := s.noted()
		for i, line := range slices.Backward(noted) {
			if strings.Contains(line, `"hang"`) {
				lines = noted[i+1:]
				break
			}
		}
		return lines, countPart(lines, "notifications/cancelled")
	}
	others := 2 // lines of the answer and of the end
	if s.layout.place == "shared" {
		others = 1
	}
	eventually(t, "all that the server is to hear", func() bool {
		lines, cancels := heard()
		return len(lines) >= 99+others && cancels >= 99 && (others == 1 || countPart(lines, " end") == 1)
	})
	lines, cancels := heard()
	if cancels != 99 || len(lines) != cancels+others || !strings.Contains(lines[0], `"error":{"code":-32000`) {
		first := lines[0]
		lines = slices.DeleteFunc(lines[1:], func(l string) bool { return strings.Contains(l, "notifications/cancelled") })
		t.Errorf("after the close the server got first %s, and %d cancellations and:\n%s", first, cancels, strings.Join(lines, "\n"))
	}
}

// D27, D28: a POST whose connection drops is not cancelled, and can be resumed.
func TestD28_DroppedPOST(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, dropPOST, noModern...)
}

func dropPOST(s *site) {
	t, c := s.t, s.connectOver("HTTP")
	w := c.wire.(*httpWire)
	post, err := w.do(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a__ask"}}`)
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	for lines := bufio.NewScanner(post.Body); c.questions() == 0 && lines.Scan(); {
		if id, ok := strings.CutPrefix(lines.Text(), "id: "); ok {
			last = id
		}
		if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			c.heard([]byte(text))
		}
	}
	post.Body.Close()
	c.accept()
	resumed, err := w.do(http.MethodGet, "", "Last-Event-ID", last)
	if err != nil {
		t.Fatal(err)
	}
	if err := readMessages(resumed, c.heard); err != nil {
		t.Error(err)
	}
	resumed.Body.Close()
	if got := c.await("1"); got != `{"action":"accept"}` {
		t.Error("got", got)
	}
	if countPart(s.noted(), "notifications/cancelled") != 0 {
		t.Error("the call was cancelled:", s.noted())
	}
}

// Clients that connect, call and vanish leave nothing behind.
func TestManyVanishingClients(t *testing.T) {
	l := layout{idle: 100 * time.Millisecond}
	everyPlace(t, l, func(s *site) {
		total := 50
		if s.layout.place == "local" && !testing.Short() {
			total = 150
		}
		vanishMany(s, total)
	}, sameLink...)
	for _, l.place = range []string{"local", "WebSocket link"} {
		acrossEras(t, l, func(s *site) { vanishMany(s, 50) })
	}
}

func vanishMany(s *site, total int) {
	t, names := s.t, wiresOf(s.layout.client)
	come := func(wire string) {
		c := s.connectOver(wire)
		c.call(1, "a__echo")
		c.await("1")
		c.call(2, "b__late")
		c.vanish()
	}
	for _, name := range names { // whatever is created only once now exists
		come(name)
	}
	eventually(t, "no process", s.settled)
	before, goroutines := descriptors(t), runtime.NumGoroutine()
	for range total / 10 {
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() { come(names[i%len(names)]) })
		}
		wg.Wait()
	}
	eventually(t, "no process", s.settled)
	eventually(t, "no descriptor more than before", func() bool { return descriptors(t) <= before+s.kept() })
	eventually(t, "no goroutine more than before", func() bool { return runtime.NumGoroutine() <= goroutines+2*s.kept() })
}

func descriptors(t *testing.T) int {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("descriptors cannot be counted here")
	}
	return len(open)
}
