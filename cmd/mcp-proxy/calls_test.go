//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// inFlight returns the calls that operators see, in short.
func inFlight(now proxy.Calls) string {
	var all []string
	for _, c := range now.Calls {
		all = append(all, fmt.Sprint(c.Upstream, " ", c.Method, " ", c.Tool, " for ", c.WaitsFor))
	}
	return strings.Join(all, ", ")
}

func (s *site) awaitCalls(want string) {
	s.t.Helper()
	got := ""
	defer func() {
		if s.t.Failed() {
			s.t.Log("it said: ", got)
		}
	}()
	eventually(s.t, want, func() bool { got = inFlight(s.proxy.Calls()); return got == want })
}

// Wherever a server is, a call that it works on is in flight and waits for the upstream, until the
// client cancels it.
func TestCalls(t *testing.T) {
	t.Parallel()
	everywhere(t, layout{}, func(s *site) {
		c := s.connect()
		c.list()
		s.awaitCalls("")
		c.call(1, "a__hang")
		s.awaitNoted("a", `"hang"`, 1)
		s.awaitCalls("a tools/call hang for upstream")
		traffic := map[string]int{}
		for _, u := range s.proxy.Snapshot().Traffic {
			traffic[u.Upstream] = u.InFlight
		}
		if traffic["a"] != 1 || traffic["b"] != 0 {
			t.Errorf("traffic: %v", traffic)
		}
		c.cancel("1")
		s.awaitCalls("")
		if s.layout.client != mcp.Modern && s.layout.era != mcp.Modern {
			c.call(2, "a__ask")
			s.awaitCalls("a tools/call ask for client")
		}
	})
}

// A call beyond maxConcurrent waits for room.
func TestCallsBeyondMaxConcurrent(t *testing.T) {
	s := newSite(t, layout{place: "HTTP", a: ", maxConcurrent: 1"})
	c := s.connect()
	c.list()
	c.call(1, "a__hang")
	s.awaitNoted("a", `"hang"`, 1) // before that, the next call may take its place
	s.awaitCalls("a tools/call hang for upstream")
	c.call(2, "a__echo")
	s.awaitCalls("a tools/call hang for upstream, a tools/call echo for room")
	c.cancel("1")
	c.await("2")
	s.awaitCalls("")
}

// The commands ask a running process over its socket, or over TCP with the token.
func TestStatusAndCalls(t *testing.T) {
	t.Parallel()
	s := emptySite(t)
	link := filepath.Join(s.dir, "l.sock")
	hostDir := shortDir(t)
	startProgram(t, []string{"XDG_RUNTIME_DIR=" + hostDir}, "host", "--listen", "unix://"+link, "--", "fakeserver")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().String()
	free.Close()
	token := s.write("token", "secret\n")
	config := s.write("c.yaml", "listen: [\"127.0.0.1:0\"]\nadmin: {listen: [\""+at+"\"], tokenFile: token}\n"+
		"upstreams:\n  near: {command: fakeserver, start: eager, inheritEnv: [all], env: {FAKE_LOG: "+s.record("a")+"}}\n  bad: {command: /no/such/command, start: eager}\n"+
		"links: {far: {dial: \"unix://"+link+"\"}}\n")
	env := []string{"XDG_RUNTIME_DIR=" + s.dir}
	if text, code := command(t, env, "status"); code != exitError || strings.Count(text, "\n") != 1 {
		t.Errorf("before: %d %q", code, text)
	}
	p := startProgram(t, env, "serve", "--config", config)
	s.url = p.url()
	hasLine := func(env []string, words string, args ...string) {
		t.Helper()
		var last string
		defer func() {
			if t.Failed() {
				t.Logf("it said\n%s", last)
			}
		}()
		eventually(t, words, func() bool {
			text, code := command(t, env, args...)
			last = text
			for line := range strings.Lines(text) {
				if code == exitOK && strings.Join(strings.Fields(line), " ") == words {
					return true
				}
			}
			return false
		})
	}
	hasLine(env, "far up 0 main", "status")
	hasLine(env, "nothing is in flight", "calls")
	c := s.connect()
	c.list()
	c.call(1, "near__hang")
	c.call(2, "main__hang")
	s.awaitNoted("a", `"hang"`, 1)
	id := ""
	eventually(t, "two calls", func() bool {
		text, code := command(t, env, "calls", "--json")
		var now proxy.Calls
		if err := json.Unmarshal([]byte(text), &now); code != exitOK || err != nil {
			t.Fatal(code, err, text)
		}
		if len(now.Calls) == 2 {
			id = now.Calls[0].Session
		}
		return inFlight(now) == "near tools/call hang for upstream, main tools/call hang for upstream"
	})
	text, _ := command(t, env, "calls")
	if !strings.HasPrefix(text, "AGE ") || !strings.Contains(text, "near      tools/call hang  t       "+id) {
		t.Errorf("calls:\n%s", text)
	}
	text, _ = command(t, env, "status", "--servers")
	for _, part := range []string{"proxy ", "near      here   running", "main      far    link up", "failed 2 times", id, "SERVER OF", "websocket"} {
		if !strings.Contains(text, part) {
			t.Errorf("status has no %q:\n%s", part, text)
		}
	}

	// A host knows its servers and the tool, but not the clients.
	hostEnv := []string{"XDG_RUNTIME_DIR=" + hostDir}
	text, code := command(t, hostEnv, "calls", "--json")
	var now proxy.Calls
	if err := json.Unmarshal([]byte(text), &now); code != exitOK || err != nil || inFlight(now) != "main tools/call hang for upstream" || now.Calls[0].Session != id {
		t.Errorf("the host: %d, %v, %s", code, err, text)
	}
	if text, _ := command(t, hostEnv, "status"); !strings.HasPrefix(text, "host ") || strings.Contains(text, "CLIENT") || !strings.Contains(text, "main      here   running  1        1") {
		t.Errorf("the host's status:\n%s", text)
	}

	if text, code := command(t, nil, "status", "--admin", at); code != exitError || strings.Count(text, "\n") != 1 || !strings.Contains(text, "--admin-token-file") {
		t.Errorf("without the token: %d %q", code, text)
	}
	if text, code := command(t, nil, "status", "--admin", at, "--admin-token-file", s.write("wrong", "x")); code != exitError || !strings.Contains(text, "401") {
		t.Errorf("with a wrong token: %d %q", code, text)
	}
	if text, code := command(t, nil, "status", "--admin", at, "--admin-token-file", filepath.Join(s.dir, "none")); code != exitUsage {
		t.Errorf("without the file: %d %q", code, text)
	}
	hasLine(nil, "far up 0 main", "status", "--admin", at, "--admin-token-file", token)
	for _, name := range []string{"status", "calls"} {
		if text, code := command(t, nil, name, "--admin", s.url); code != exitError || strings.Count(text, "\n") != 1 || !strings.Contains(text, "is an address for clients") {
			t.Errorf("%s at the address for clients: %d %q", name, code, text)
		}
	}
	if text, code := command(t, env, "top"); code != exitUsage || !strings.Contains(text, "terminal") {
		t.Errorf("top without a terminal: %d %q", code, text)
	}
}

// No line of a table is wider than the terminal, and a terminal obeys nothing in it.
func TestRows(t *testing.T) {
	r := &rows{head: "A\tB"}
	r.add("x\x1b[31m\ty\nz", strings.Repeat("w", 200))
	r.add("é", 7)
	r.add("left", "out")
	r.atMost(2)
	var out bytes.Buffer
	r.write(&out, 20)
	if got, want := out.String(), "A              B\nx\\u001b[31m y  wwww…\né              7\nand 1 more\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	out.Reset()
	(&rows{head: "A"}).write(&out, 0)
	if out.Len() > 0 {
		t.Errorf("an empty table: %q", out.String())
	}
}

func TestUnits(t *testing.T) {
	for got, want := range map[string]string{
		latency(0): "", latency(0.35): "0.3ms", latency(12.6): "13ms", latency(4100): "4.1s",
		size(0): "0 B", size(4096): "4 KiB", size(3 << 19): "1.5 MiB", perSecond(0): "", perSecond(0.0512): "0.05", perSecond(123.4): "123",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What top draws fits the screen, whatever its size.
func TestTopFits(t *testing.T) {
	now, calls := proxy.Snapshot{Process: proxy.Process{Role: "proxy"}}, proxy.Calls{Now: time.Now(), LeftOut: 5}
	for i := range 40 {
		now.Traffic = append(now.Traffic, proxy.Traffic{Upstream: fmt.Sprint("u", i), PerSecond: float64(i), Requests: 10, Errors: 1})
		calls.Calls = append(calls.Calls, observe.OpenRequest{Upstream: "u", Method: "tools/call", Tool: strings.Repeat("t", 300), Began: calls.Now})
	}
	draw := func(l sample, err error, high int) []string {
		l.Status, _ = json.Marshal(now)
		l.Calls, _ = json.Marshal(calls)
		return strings.Split(strings.TrimSuffix(l.screen(err, 60, high), "\n"), "\n")
	}
	for _, high := range []int{12, 24, 60, 200, -12, -24, -60, -200} {
		if now.Replicas = nil; high < 0 { // with replicas
			high = -high
			for range 12 {
				now.Replicas = append(now.Replicas, observe.Replica{Instance: "R4KQ2ZB7XWNTE", State: "ready", Address: "10.0.0.7:7946"})
			}
		}
		lines := draw(sample{}, nil, high)
		if shown := strings.Contains(strings.Join(lines, "\n"), "R4KQ2ZB7XWNTE  ready"); shown != (len(now.Replicas) > 0 && high > 12) {
			t.Errorf("%d replicas are shown on %d lines: %t", len(now.Replicas), high, shown)
		}
		if len(lines) > high {
			t.Errorf("%d lines on a screen of %d:\n%s", len(lines), high, strings.Join(lines, "\n"))
		}
		for _, l := range lines {
			if len([]rune(l)) > 60 {
				t.Errorf("%q is too wide", l)
			}
		}
		if !strings.HasPrefix(lines[4], "u39 ") {
			t.Errorf("the busiest is not first: %q", lines)
		}
	}
	if lines := draw(sample{}, os.ErrDeadlineExceeded, 24); !strings.Contains(lines[1], "no answer") {
		t.Errorf("%q", lines[:3])
	}
}
