//go:build unix

package main

import (
	"fmt"
	"maps"
	"strings"
	"syscall"
	"testing"
)

// SIGHUP makes the host reload the upstreams of the configuration: those that are unchanged keep
// running, and clients are notified. An invalid configuration changes nothing.
func TestReload(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"serve", "host"} {
		t.Run(command, func(t *testing.T) {
			s, socket := behindHost(t)
			upstreams := func(list string) string {
				return s.write("reload.yaml", "upstreams:\n"+strings.ReplaceAll(list, "RECORD", fmt.Sprintf("%q", s.record("a"))))
			}
			file := upstreams("  a: {command: fakeserver, env: {FAKE_LOG: RECORD}}\n" +
				"  b: {command: fakeserver, env: {FAKE_LOG: RECORD}}\n")
			p := s.runs(command, socket, file, "b")
			c := s.connect()
			c.list()
			c.call(1, "a__slow")
			c.call(2, "b__hang")
			s.awaitNoted("a", `"slow"`, 1)
			s.awaitNoted("a", `"hang"`, 1)

			upstreams("  b: {}\n")
			p.cmd.Process.Signal(syscall.SIGHUP)
			eventually(t, "the refusal", func() bool { return p.log.count("configuration not reloaded") == 1 })

			upstreams("  a: {command: fakeserver, env: {FAKE_LOG: RECORD}}\n" +
				"  b: {command: fakeserver, env: {FAKE_LOG: RECORD, NEW: '1'}}\n" +
				"  c: {command: fakeserver, env: {FAKE_LOG: RECORD}}\n" +
				"shutdownGrace: 9s\n")
			p.cmd.Process.Signal(syscall.SIGHUP)
			if got := c.await("2"); !strings.Contains(got, `"cause":"upstream changed"`) {
				t.Error("the call on what was changed got", got)
			}
			eventually(t, "list_changed", func() bool { return c.heardOf("tools/list_changed") == 1 })
			c.works(10, "c__echo")
			c.works(20, "b__echo")
			c.get(3, "a__release")
			if got := c.await("1"); got != fakeDone {
				t.Error("the call on what is the same got", got)
			}
			if p.log.count(`"keys":"shutdownGrace"`) != 1 {
				t.Errorf("what needs a restart is not told:\n%s", p.log)
			}
			if p.log.count("upstream ended unexpectedly") != 0 {
				t.Errorf("log:\n%s", p.log)
			}

			upstreams("  b: {command: fakeserver, env: {FAKE_LOG: RECORD, NEW: '1'}}\n" +
				"  c: {command: fakeserver, env: {FAKE_LOG: RECORD}}\n")
			p.cmd.Process.Signal(syscall.SIGHUP)
			eventually(t, "the end of a", func() bool { return strings.HasPrefix(c.get(30, "a__echo"), "!") })
			c.works(40, "b__echo")
		})
	}
}

// runs starts the proxy, or a host and the site's proxy in front of it, with a file, and
// waits for one of its upstreams.
func (s *site) runs(command, socket, file, upstream string) *program {
	s.t.Helper()
	if command == "host" {
		p := startProgram(s.t, nil, "host", "--listen", "unix://"+socket, "--config", file)
		p.hear()
		s.run("links: {far: {dial: unix://" + socket + "}}\n")
		eventually(s.t, "the link", func() bool { return s.linkedTo(upstream) })
		return p
	}
	p := startProgram(s.t, nil, "serve", "--listen", "127.0.0.1:0", "--config", file)
	s.url = p.url()
	return p
}

// A SIGHUP that makes one upstream of several, or several of one, only changes names: calls
// continue, and nothing restarts. Clients of a removed upstream get one cause, over any wire and
// in any era.
func TestReloadRenames(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"serve", "host"} {
		for _, session := range []string{"isolated", "shared"} {
			t.Run(command+" "+session, func(t *testing.T) { reloadRenames(t, command, session) })
		}
	}
}

func reloadRenames(t *testing.T, command, session string) {
	s, socket := behindHost(t)
	configure := func(names ...string) string {
		text := "upstreams:\n"
		for _, name := range names {
			text += fmt.Sprintf("  %s: {command: fakeserver, session: %s, env: {FAKE_LOG: %q}}\n", name, session, s.record(name))
		}
		return s.write("reload.yaml", text)
	}
	p := s.runs(command, socket, configure("a"), "a")
	reload := func(times int, names ...string) {
		configure(names...)
		p.cmd.Process.Signal(syscall.SIGHUP)
		eventually(t, "the reload", func() bool { return p.log.count("configuration reloaded") == times })
	}
	clients := map[string]*client{}
	for _, over := range []string{"WebSocket", "HTTP", "modern WebSocket", "modern HTTP"} {
		c := s.connectOver(over)
		clients[over] = c
		c.list()
		c.call(1, "slow")
	}
	s.awaitNoted("a", `"slow"`, len(clients))
	started := s.servers("a")

	reload(1, "a", "b")
	for over, c := range clients {
		c.works(10, "b__echo")
		c.call(2, "b__hang")
		if got := c.answer("1"); got != "" {
			t.Error(over, "the call that is open got", got)
		}
	}
	s.awaitNoted("b", `"hang"`, len(clients))

	reload(2, "a")
	for over, c := range clients {
		if got := c.await("2"); !strings.Contains(got, `"cause":"upstream changed"`) {
			t.Error(over, "the call on what is gone got", got)
		}
		for id, tool := range []string{"echo", "a__echo"} {
			if got := c.get(100+id, tool); strings.HasPrefix(got, "!") {
				t.Error(over, tool, got)
			}
		}
		c.call(3, "release")
	}
	for over, c := range clients {
		if got := c.await("1"); got != fakeDone {
			t.Error(over, "the call got", got)
		}
	}
	if now := s.servers("a"); !maps.Equal(now, started) || p.log.count("upstream ended unexpectedly") != 0 {
		t.Errorf("processes: %v, then %v\n%s", started, now, p.log)
	}
}

// A reload that swaps two upstreams, and with them what is denied, denies at every moment: no call that was allowed
// before reaches the server that has come in its place. It does not matter whether a policy denies or the upstream.
func TestReloadNeverLoosens(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"policies", "tools"} {
		t.Run(by, func(t *testing.T) {
			s := emptySite(t)
			configure := func(names ...string) string { // that of what is open, and that of what is denied
				text := fmt.Sprintf("upstreams:\n  %s: {command: fakeserver, env: {FAKE_LOG: %q}}\n  %s: {command: fakeserver, env: {FAKE_LOG: %q}", names[0], s.record("open"), names[1], s.record("denied"))
				if by == "tools" {
					text += ", tools: {deny: ['*']}}\n"
				} else {
					text += "}\npolicies: [{who: any, tools: {allow: ['" + names[0] + "__*']}}]\n"
				}
				return s.write("reload.yaml", text)
			}
			p := startProgram(t, nil, "serve", "--listen", "127.0.0.1:0", "--config", configure("a", "b"))
			s.url = p.url()
			var clients []*client
			for _, over := range []string{"WebSocket", "HTTP", "modern WebSocket", "modern HTTP"} {
				clients = append(clients, s.connectOver(over), s.connectOver(over))
			}
			id := 0
			calls := func() {
				for _, c := range clients {
					c.call(id+1, "a__echo")
					c.call(id+2, "b__echo")
				}
				id += 2
				for _, c := range clients {
					c.await(fmt.Sprint(id - 1))
					c.await(fmt.Sprint(id))
				}
			}
			names := []string{"a", "b"}
			for reloads := 1; reloads <= 40; reloads++ {
				calls()
				names[0], names[1] = names[1], names[0]
				configure(names...)
				p.cmd.Process.Signal(syscall.SIGHUP)
				for p.log.count("configuration reloaded") < reloads {
					calls()
				}
			}
			if reached := countPart(s.notedBy("denied"), `"tools/call"`); reached > 0 {
				t.Errorf("%d calls of %d reached the server that is denied", reached, id*len(clients))
			}
			if countPart(s.notedBy("open"), `"tools/call"`) == 0 {
				t.Error("no call reached the other one")
			}
		})
	}
}

// D40: a reload replaces the server of a suspended call. The client learns that when it answers, over any wire.
func TestD40_ReloadWhileParked(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"serve", "host"} {
		t.Run(command, func(t *testing.T) {
			s, socket := behindHost(t)
			configure := func(now string) string {
				return s.write("reload.yaml", fmt.Sprintf("upstreams:\n  a: {command: fakeserver, env: {FAKE_LOG: %q, NOW: %q}}\n  b: {command: fakeserver}\n", s.record("a"), now))
			}
			p := s.runs(command, socket, configure("old"), "a")
			var clients []*client
			for _, wire := range []string{"modern WebSocket", "modern HTTP"} {
				c := s.connectOver(wire)
				c.call(1, "a__ask")
				eventually(t, "the question", func() bool { return c.questions() == 1 })
				clients = append(clients, c)
			}
			configure("new")
			p.cmd.Process.Signal(syscall.SIGHUP)
			eventually(t, "the reload", func() bool { return p.log.count("configuration reloaded") == 1 })
			for _, c := range clients {
				c.accept()
				if got := c.await("1"); !strings.Contains(got, `"cause":"upstream changed","phase":"in_flight"`) {
					t.Errorf("%T: who came back got %s", c.wire.(*modernWire).wire, got)
				}
			}
			s.awaitNoted("a", `"ask"`, len(clients))
		})
	}
}
