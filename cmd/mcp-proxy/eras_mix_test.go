//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// sayModern sends a request of the modern era on a connection of either era.
func (c *client) sayModern(id int, method, params string) {
	c.t.Helper()
	stamped := mcp.SetMeta(json.RawMessage(params),
		jsonrpc.Value{Key: mcp.KeyVersion, Text: json.RawMessage(`"2026-07-28"`)},
		jsonrpc.Value{Key: mcp.KeyCapabilities, Text: json.RawMessage(`{"elicitation":{}}`)})
	c.say(string(jsonrpc.NewRequest(jsonrpc.IntID(int64(id)), method, stamped).Append(nil)))
}

// A connection carries both eras, message by message, each with its own answers,
// errors and cancellations.
func TestMixedEras(t *testing.T) {
	t.Parallel()
	for _, wire := range []string{"WebSocket", "stdio"} {
		for _, era := range []string{"", "modern", "both"} {
			t.Run(wire+"/"+era, func(t *testing.T) {
				s := newSite(t, layout{era: mcp.Era(era)})
				c := s.connectOver(wire)
				c.call(1, "a__slow")
				s.awaitNoted("a", `"slow"`, 1)
				c.sayModern(2, "tools/call", `{"name":"a__echo","arguments":{"n":1.50}}`)
				if got := c.await("2"); !strings.Contains(got, `"resultType":"complete"`) || !strings.Contains(got, `{"n":1.50}`) {
					t.Error("the modern call got", got)
				}
				c.sayModern(3, "tools/list", `{}`)
				if got := c.await("3"); !strings.Contains(got, `"ttlMs"`) || !strings.Contains(got, `"b__echo"`) {
					t.Error("the modern list got", got)
				}
				c.say(`{"jsonrpc":"2.0","id":4,"method":"tools/list"}`)
				if got := c.await("4"); strings.Contains(got, `"ttlMs"`) || !strings.Contains(got, `"b__echo"`) {
					t.Error("the legacy list got", got)
				}
				c.sayModern(7, "tools/call", `{"name":"a__ask"}`)
				if got := c.await("7"); !strings.Contains(got, `"resultType":"input_required"`) || c.questions() > 0 {
					t.Error("the modern call that asks got", got)
				}
				c.call(8, "a__ask")
				eventually(t, "the question", func() bool { return c.questions() == 1 })
				c.accept()
				if got := c.await("8"); got != `{"action":"accept"}` {
					t.Error("the legacy call that asks got", got)
				}
				c.sayModern(5, "tools/call", `{"name":"a__hang"}`)
				c.call(6, "a__hang")
				s.awaitNoted("a", `"hang"`, 2)
				c.cancel("5")
				s.awaitNoted("a", "notifications/cancelled", 1)
				c.cancel("6")
				s.awaitNoted("a", "notifications/cancelled", 2)
				c.get(9, "a__release")
				c.sayModern(10, "tools/call", `{"name":"a__crash"}`)
				if got := c.await("10"); !s.killed(got) {
					t.Error("the modern call that kills got", got)
				}
				c.works(20, "a__echo")
				if len(c.twice) > 0 || c.answers["5"] != nil || c.answers["6"] != nil {
					t.Errorf("answered twice: %v; answers: %v", c.twice, c.answers)
				}
			})
		}
	}
}

// servers returns the running processes of an upstream that were called.
func (s *site) servers(upstream string) map[string]bool {
	found := map[string]bool{}
	for _, line := range s.notedBy(upstream) {
		pid, message, _ := strings.Cut(line, " ")
		if n, err := strconv.Atoi(pid); err == nil && strings.Contains(message, `"tools/call"`) && !ended(n) {
			found[pid] = true
		}
	}
	return found
}

// One process of the modern era serves all clients, modern and legacy.
func TestOneModernProcess(t *testing.T) {
	s := newSite(t, layout{era: mcp.Modern})
	wires := append(wiresOf(mcp.Modern), "WebSocket", "stdio")
	for i := range 10 {
		c := s.connectOver(wires[i%len(wires)])
		c.get(1, "a__echo")
		c.call(2, "a__slow")
	}
	s.awaitNoted("a", `"slow"`, 10)
	if got := s.servers("a"); len(got) != 1 || len(children(os.Getpid())) != 2 {
		t.Errorf("servers: %v; processes: %v", got, children(os.Getpid()))
	}
}

// Sessions that are kept for modern clients end when they are not used for a
// while, even if the clients are connected; the next call begins a new one.
func TestReapedSessions(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"local", "shared", "WebSocket link"} {
		t.Run(place, func(t *testing.T) {
			reapSessions(newSite(t, layout{client: mcp.Modern, place: place, idle: 100 * time.Millisecond}))
		})
	}
}

func reapSessions(s *site) {
	for i, wire := range wiresOf(mcp.Modern) {
		c := s.connectOver(wire)
		for id := range 2 {
			if got := c.get(id, "a__echo"); strings.HasPrefix(got, "!") {
				s.t.Error("the call got", got)
			}
			eventually(s.t, "no process", s.settled)
			if s.layout.place != "shared" {
				eventually(s.t, "the end of the session", func() bool { return countPart(s.noted(), " end") > 2*i+id })
			}
		}
		c.vanish()
	}
	if s.log.count("level=WARN") > 0 {
		s.t.Errorf("log:\n%s", s.log)
	}
}

// Clients on connections of their own never share a legacy session; anonymous ones over HTTP,
// which cannot be told apart, do.
func TestPrincipals(t *testing.T) {
	s := newSite(t, layout{client: mcp.Modern})
	for i, wire := range []string{"WebSocket", "WebSocket", "stdio", "HTTP", "HTTP", "HTTP"} {
		c := s.connectOver(wire)
		c.get(1, "a__echo")
		if got, want := len(s.servers("a")), min(i+1, 4); got != want {
			t.Errorf("after client %d over %s: %d servers, want %d", i, wire, got, want)
		}
	}
}

// callAbout calls the tool that asks, with its id as the subject of the question.
func (c *client) callAbout(id int) {
	c.t.Helper()
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"a__ask","arguments":{"about":"%d"}}}`, id, id))
}

// A server on stdio asks during concurrent calls. A question that cannot be attributed to a call is
// refused; from then on each question reaches its client, and each answer the server
// that asked.
func TestLanes(t *testing.T) {
	t.Parallel()
	for _, place := range []string{"local", "unix link", "WebSocket"} {
		t.Run(place, func(t *testing.T) {
			s := newSite(t, layout{place: place, client: mcp.Modern})
			c, d := s.connectOver("HTTP"), s.connectOver("HTTP")
			c.call(1, "a__slow")
			s.awaitNoted("a", `"slow"`, 1)
			if got := d.get(2, "a__ask"); !strings.HasPrefix(got, `!{"code":-32603,`) {
				t.Error("the call whose question is nobody's got", got)
			}
			if c.questions()+d.questions() > 0 {
				t.Error("somebody was asked")
			}
			for id := range 5 {
				c.callAbout(10 + id)
				d.callAbout(20 + id)
			}
			eventually(t, "the questions", func() bool { return c.questions() == 5 && d.questions() == 5 })
			for _, c := range []*client{d, c} {
				c.mu.Lock()
				for _, q := range c.asked {
					if about, _ := jsonrpc.Member(q.Params, "message"); strings.Trim(string(about), `"`) != ofCall(q) {
						t.Errorf("call %s was asked about %s", ofCall(q), about)
					}
				}
				c.mu.Unlock()
				c.reply(func(question json.RawMessage) string {
					about, _ := jsonrpc.Member(question, "message")
					return `{"action":"accept","content":{"about":` + string(about) + `}}`
				})
			}
			for id := range 5 {
				for first, c := range map[int]*client{10: c, 20: d} {
					id := strconv.Itoa(first + id)
					if got, want := c.await(id), `{"action":"accept","content":{"about":"`+id+`"}}`; got != want {
						t.Errorf("call %s got %s", id, got)
					}
				}
			}
		})
	}
}

// A legacy server that exits when it is probed for its era is probed once.
func TestProbedServer(t *testing.T) {
	s := newSite(t, layout{client: mcp.Modern, env: `FAKE_PROBED: "exit"`})
	for _, wire := range []string{"WebSocket", "HTTP"} {
		if got := s.connectOver(wire).get(1, "a__echo"); strings.HasPrefix(got, "!") {
			t.Error("got", got)
		}
	}
	if n := countPart(s.noted(), `"server/discover"`); n != 1 || s.log.count("level=WARN") > 0 {
		t.Errorf("asked %d times; log:\n%s", n, s.log)
	}
}

// A server that speaks both eras is used in each client's own.
func TestBothEras(t *testing.T) {
	t.Parallel()
	everyPlace(t, layout{era: "both"}, func(s *site) {
		for i, wire := range []string{"modern WebSocket", "WebSocket", "modern HTTP"} {
			c := s.connectOver(wire)
			c.get(1, "a__echo")
			noted := s.noted()
			last := noted[len(noted)-1]
			if modern := strings.Contains(last, mcp.KeyVersion); modern != strings.HasPrefix(wire, "modern") {
				s.t.Errorf("client %d over %s reached the server by %s", i, wire, last)
			}
		}
	})
}

// A modern server is killed and comes back as a legacy one, and the other way round, as after
// a replacement: the remembered era is corrected.
func TestChangedEra(t *testing.T) {
	s := emptySite(t)
	era := s.write("era", "modern")
	script := s.write("server", "#!/bin/sh\nFAKE_ERA=$(cat "+era+") exec fakeserver\n")
	os.Chmod(script, 0o700)
	s.run("upstreams:\n  a: {command: " + script + fmt.Sprintf(", env: {FAKE_LOG: %q}}\n", s.record("a")))
	for _, wire := range []string{"modern WebSocket", "WebSocket"} {
		c := s.connectOver(wire)
		c.get(1, "echo")
		for _, now := range []string{"", "modern"} {
			s.write("era", now)
			for pid := range s.servers("a") {
				n, _ := strconv.Atoi(pid)
				syscall.Kill(n, syscall.SIGKILL)
				eventually(t, "the end", func() bool { return ended(n) })
			}
			id := 10
			eventually(t, wire+": an answer of the server, now "+now, func() bool {
				id++
				return !strings.HasPrefix(c.get(id, "echo"), "!")
			})
		}
		c.vanish()
	}
}
