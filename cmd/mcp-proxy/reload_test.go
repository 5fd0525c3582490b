//go:build unix

package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// SIGHUP has the upstreams of the configuration taken over anew: what is the same
// runs on, and clients are told. One that cannot be used changes nothing.
func TestReload(t *testing.T) {
	for _, command := range []string{"serve", "host"} {
		t.Run(command, func(t *testing.T) {
			s, socket := behindHost(t)
			upstreams := func(list string) string {
				return s.write("reload.yaml", "upstreams:\n"+strings.ReplaceAll(list, "RECORD", fmt.Sprintf("%q", s.record("a"))))
			}
			file := upstreams("  a: {command: fakeserver, env: {FAKE_LOG: RECORD}}\n" +
				"  b: {command: fakeserver, env: {FAKE_LOG: RECORD}}\n")
			var p *program
			if command == "host" {
				p = startProgram(t, nil, "host", "--listen", "unix://"+socket, "--config", file)
				p.hear()
				s.run("links: {far: {dial: unix://" + socket + "}}\n")
				eventually(t, "the link", func() bool { return s.engine.known("b") })
			} else {
				p = startProgram(t, nil, "serve", "--listen", "127.0.0.1:0", "--config", file)
				_, rest, _ := strings.Cut(p.hear(), "http://")
				address, _, _ := strings.Cut(rest, "/")
				s.url = "http://" + address
			}
			c := s.connect()
			c.list()
			c.call(1, "a__slow")
			c.call(2, "b__hang")
			s.awaitNoted("a", `"slow"`, 1)
			s.awaitNoted("a", `"hang"`, 1)

			upstreams("  b: {}\n")
			p.cmd.Process.Signal(syscall.SIGHUP)
			eventually(t, "the refusal", func() bool { return p.log.count("configuration not taken over") == 1 })

			upstreams("  a: {command: fakeserver, env: {FAKE_LOG: RECORD}}\n" +
				"  b: {command: fakeserver, env: {FAKE_LOG: RECORD, NEW: '1'}}\n" +
				"  c: {command: fakeserver, env: {FAKE_LOG: RECORD}}\n")
			p.cmd.Process.Signal(syscall.SIGHUP)
			if got := c.await("2"); got != lost("b", "upstream changed") {
				t.Error("the call on what was changed got", got)
			}
			eventually(t, "list_changed", func() bool { return c.heardOf("tools/list_changed") == 1 })
			c.works(10, "c__echo")
			c.works(20, "b__echo")
			c.get(3, "a__release")
			if got := c.await("1"); got != fakeDone {
				t.Error("the call on what is the same got", got)
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
