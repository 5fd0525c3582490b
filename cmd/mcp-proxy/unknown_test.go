//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// serve asks the upstreams that no earlier run knows for their lists, for clients with and without
// capabilities, and no others. One that cannot start is one line in the log.
func TestServeAsksForUnknownLists(t *testing.T) {
	t.Parallel()
	s := emptySite(t)
	env := []string{"XDG_RUNTIME_DIR=" + s.dir}
	fake := func(name string) string {
		return fmt.Sprintf("  %s: {command: sh, args: [-c, \"sleep 0.3; exec fakeserver\"], inheritEnv: [all], env: {FAKE_LOG: %q}}\n", name, s.record(name))
	}
	upstreams := "  eager: {command: fakeserver, inheritEnv: [all], start: eager, env: {FAKE_LOG: \"" + s.record("eager") + "\"}}\n" + fake("a") + fake("b")
	configure := func(more string) string {
		return s.write("c.yaml", "listen: [\"127.0.0.1:0\"]\ncacheDir: "+s.dir+"/cache\nupstreams:\n"+upstreams+more+"  broken: {command: /no/such/command}\n")
	}
	starts := func(name string) int { return countPart(s.notedBy(name), `"initialize"`) }
	serve := func() *program {
		p := startProgram(t, env, "serve", "--config", configure(""))
		s.url = p.url()
		eventually(t, "the last trial", func() bool { return p.log.count("upstream failed to start") == 1 })
		return p
	}
	stop := func(p *program) {
		t.Helper()
		p.cmd.Process.Signal(syscall.SIGTERM)
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("the end: %v\n%s", err, p.log)
		}
	}

	p := serve()
	for name, want := range map[string]int{"a": 2, "b": 2, "eager": 0} {
		if n := starts(name); n != want {
			t.Errorf("%s started %d times, want %d", name, n, want)
		}
	}
	eventually(t, "the ends of the trials", func() bool { return len(children(p.cmd.Process.Pid)) == 0 })
	if n := p.log.count(`"WARN"`); n > 1+p.log.count("modern HTTP clients are one principal")+p.log.count("command:") {
		t.Errorf("%d warnings:\n%s", n, p.log)
	}
	c := s.connect()
	if got := c.get(1, "broken__echo"); !strings.Contains(got, `"upstream":"broken"`) || !strings.Contains(got, "did not start: command not found") {
		t.Errorf("the client got %s", got)
	}
	events := regexp.MustCompile(`"event":"(\w+)"`).FindAllStringSubmatch(p.log.String(), -1)
	if text, _ := command(t, env, "explain", events[len(events)-1][1]); !strings.Contains(text, " told    session") {
		t.Errorf("the last event:\n%s", text)
	}
	c.list()
	if n := starts("a") + starts("b"); n != 4 {
		t.Errorf("%d starts after a client with other capabilities has looked", n)
	}
	stop(p)
	kept, _ := os.ReadFile(filepath.Join(s.dir, "cache", "catalog.json"))
	if n := strings.Count(string(kept), `"introduction"`); n != 4 {
		t.Errorf("%d entries in the catalog", n)
	}

	p = serve()
	if n := starts("a") + starts("b"); n != 4 {
		t.Errorf("%d starts although all is known", n)
	}
	configure(fake("late"))
	p.cmd.Process.Signal(syscall.SIGHUP)
	eventually(t, "the trials of what is new", func() bool { return starts("late") == 2 })
	eventually(t, "the ends of the trials", func() bool { return len(children(p.cmd.Process.Pid)) == 0 })
	if a, b, broken := starts("a"), starts("b"), p.log.count("upstream failed to start"); a+b != 4 || broken != 1 {
		t.Errorf("%d starts of what has not changed, %d failed", a+b, broken)
	}
	stop(p)
}

// A shutdown does not wait for what the background asks.
func TestServeStopsAsking(t *testing.T) {
	t.Parallel()
	s := emptySite(t)
	hung := fmt.Sprintf("{command: fakeserver, inheritEnv: [all], env: {FAKE_MUTE: \"1\", FAKE_LOG: %q}}", s.record("a"))
	p := startProgram(t, nil, "serve", "--config", s.write("c.yaml", "listen: [\"127.0.0.1:0\"]\nupstreams: {a: "+hung+", b: "+hung+"}\n"))
	s.awaitNoted("a", `"initialize"`, 1)
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the end: %v\n%s", err, p.log)
	}
	if n := countPart(s.noted(), `"initialize"`); n != 1 || p.log.count(`"WARN"`) > p.log.count("modern HTTP clients are one principal") {
		t.Errorf("%d servers were started\n%s", n, p.log)
	}
}

// Readiness starts a required upstream, and what it lists then is not asked for again.
func TestServeLearnsFromReadiness(t *testing.T) {
	t.Parallel()
	s := emptySite(t)
	env := []string{"XDG_RUNTIME_DIR=" + s.dir}
	config := s.write("c.yaml", "listen: [\"127.0.0.1:0\"]\ncacheDir: "+s.dir+"/cache\nupstreams:\n"+
		fmt.Sprintf("  a: {command: fakeserver, inheritEnv: [all], required: true, start: lazy, env: {FAKE_LOG: %q}}\n", s.record("a"))+
		"  broken: {command: /no/such/command}\n")
	for _, starts := range []int{2, 1} { // one for clients with capabilities
		p := startProgram(t, env, "serve", "--config", config)
		p.hear()
		eventually(t, "the last trial", func() bool { return p.log.count("upstream failed to start") == 1 })
		eventually(t, "readiness", func() bool {
			text, _ := command(t, env, "healthcheck")
			return strings.TrimSpace(text) == "ok"
		})
		p.cmd.Process.Signal(syscall.SIGTERM)
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("the end: %v\n%s", err, p.log)
		}
		if n := countPart(s.noted(), `"initialize"`); n != starts {
			t.Errorf("%d starts, want %d", n, starts)
		}
		os.Remove(s.record("a"))
	}
}
