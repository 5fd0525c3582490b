//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
)

// A site is a whole proxy in this process, with real servers behind it and a
// real socket before it.
type site struct {
	t      *testing.T
	engine *engine
	front  *frontend.HTTP
	url    string // http://HOST:PORT
	log    *lines
	record string // where the servers of upstream "a" note what they get
}

// newSite runs a proxy with the fake upstreams a and b.
func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, log: &lines{}, record: filepath.Join(t.TempDir(), "record")}
	server, err := exec.LookPath("fakeserver")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mcp-proxy.yaml")
	text := fmt.Sprintf("limits: {sessions: 400}\nupstreams:\n"+
		"  a: {command: %q, env: {FAKE_LOG: %q, GORACE: %q}, stopGrace: 500ms}\n"+
		"  b: {command: %q, env: {GORACE: %[3]q}, stopGrace: 500ms}\n", server, s.record, os.Getenv("GORACE"), server)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := config.Load(config.Options{File: file})
	if err != nil {
		t.Fatal(err)
	}
	if s.engine, err = newEngine(cfg, slog.New(slog.NewTextHandler(s.log, nil))); err != nil {
		t.Fatal(err)
	}
	s.engine.start()
	s.front = &frontend.HTTP{Serve: s.engine.serve, Known: s.engine.known, Limits: limitsOf(cfg), Sessions: cfg.Limits.Sessions}
	listener := httptest.NewServer(s.front)
	s.url = listener.URL
	t.Cleanup(func() {
		s.front.Close()
		s.engine.stop(context.Background())
		listener.Close()
	})
	return s
}

// noted returns what the servers of upstream a noted, in order.
func (s *site) noted() []string {
	text, _ := os.ReadFile(s.record)
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func countPart(lines []string, part string) int {
	n := 0
	for _, l := range lines {
		if strings.Contains(l, part) {
			n++
		}
	}
	return n
}

// D07, D50: 200 calls on an upstream that is killed, 50 on another.
func TestD07_KilledUpstream(t *testing.T) {
	for name := range wires {
		t.Run(name, func(t *testing.T) { killUpstream(newSite(t), name) })
	}
}

func killUpstream(s *site, wire string) {
	t, c := s.t, s.connectOver(wire)
	for i := range 200 {
		c.call(i, "a__hang")
	}
	for i := range 50 {
		c.call(1000+i, "b__ask")
	}
	eventually(t, "200 calls and 50 questions", func() bool {
		return c.questions() == 50 && countPart(s.noted(), `"hang"`) == 200
	})
	c.call(500, "a__crash")
	want := "!" + string(jsonrpc.ConnectionClosed(-32603, "a", "signal: killed", jsonrpc.InFlight).Raw())
	eventually(t, "one error for each call", func() bool {
		return c.count(func(a string) bool { return a == want }) == 201
	})
	c.accept()
	for i := range 50 {
		if got := c.await(strconv.Itoa(1000 + i)); got != `{"action":"accept"}` {
			t.Error("the other upstream answered", got)
		}
	}
	c.call(501, "a__echo")
	if got := c.await("501"); !strings.Contains(got, "structuredContent") {
		t.Error("the next call got", got)
	}
	if s.log.count("level=WARN") != 1 || s.log.count("in_flight=201") != 1 {
		t.Errorf("want one warning that says 201:\n%s", s.log.text.String())
	}
	if len(c.twice) > 0 {
		t.Error("answered twice:", c.twice)
	}
}

// D01, D06, D35 to D37: a client vanishes with calls and a question open.
func TestD06_VanishedClient(t *testing.T) {
	for name := range wires {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			c, left := vanishing(s, name)
			c.vanish()
			left()
			ending := "!" + string(jsonrpc.ConnectionClosed(-32000, "", "", jsonrpc.InFlight).Raw())
			told := c.count(func(a string) bool { return a == ending })
			if want := map[string]int{"HTTP": 200}[name]; told != want { // a POST needs an end
				t.Errorf("%d calls were ended, want %d", told, want)
			}
		})
	}
}

// D29: a client over HTTP vanishes without a word, and expires.
func TestD29_ExpiredClient(t *testing.T) {
	s := newSite(t)
	s.front.SessionIdle = time.Second
	c, left := vanishing(s, "HTTP")
	c.wire.(*httpWire).abandon()
	left()
}

// vanishing returns a client with 99 calls, one that asks, and 100 calls on
// another upstream, and a check of what must be when it has left.
func vanishing(s *site, wire string) (c *client, left func()) {
	t := s.t
	t.Helper()
	c = s.connectOver(wire)
	for i := range 100 {
		c.call(1000+i, "b__hang")
	}
	c.call(1, "a__grandchild")
	var child struct {
		StructuredContent struct{ Pid int }
	}
	if err := json.Unmarshal([]byte(c.await("1")), &child); err != nil {
		t.Fatal(err)
	}
	for i := range 99 {
		c.call(100+i, "a__hang")
	}
	eventually(t, "99 calls", func() bool { return countPart(s.noted(), `"hang"`) == 99 })
	c.call(99, "a__ask")
	eventually(t, "a question", func() bool { return c.questions() == 1 })
	return c, func() {
		t.Helper()
		eventually(t, "the server's end", func() bool { return countPart(s.noted(), " end") == 1 })
		noted := s.noted()
		after := noted[slices.IndexFunc(noted, func(l string) bool { return strings.Contains(l, `"ask"`) })+1:]
		cancels := countPart(after, "notifications/cancelled")
		// The end of stdin shows first: the answer to its question may settle
		// the call that asked before stdout is known to be broken.
		if settled := wire == "stdio" && cancels == 99; cancels != 100 && !settled || len(after) != cancels+2 ||
			!strings.Contains(after[0], `"id":1,"error":{"code":-32000`) {
			t.Errorf("after the close the server got:\n%s", strings.Join(after, "\n"))
		}
		pid, _ := strconv.Atoi(strings.Fields(noted[0])[0])
		eventually(t, "process and grandchild gone", func() bool { return gone(pid) && ended(child.StructuredContent.Pid) })
		eventually(t, "no process", func() bool { return len(children(os.Getpid())) == 0 })
		if s.log.count("level=WARN") != 0 || s.log.count("client disconnected") != 1 {
			t.Errorf("want one line, and no warning:\n%s", s.log.text.String())
		}
	}
}

// D27, D28: a POST whose connection drops is not cancelled, and can be resumed.
func TestD28_DroppedPOST(t *testing.T) {
	s := newSite(t)
	c := s.connectOver("HTTP")
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

// Nothing is left of clients that come, call and vanish.
func TestManyVanishingClients(t *testing.T) {
	total := 300
	if testing.Short() {
		total = 30
	}
	s := newSite(t)
	for name := range wires { // what is made once is made
		s.connectOver(name).vanish()
	}
	settled := func() bool { return len(children(os.Getpid())) == 0 }
	eventually(t, "no process", settled)
	before, goroutines := descriptors(t), runtime.NumGoroutine()
	names := slices.Sorted(maps.Keys(wires))
	for range total / 10 {
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				c := s.connectOver(names[i%len(names)])
				c.call(1, "a__echo")
				c.await("1")
				c.call(2, "b__hang")
				c.vanish()
			})
		}
		wg.Wait()
	}
	eventually(t, "no process", settled)
	eventually(t, "no descriptor more than before", func() bool { return descriptors(t) <= before })
	eventually(t, "no goroutine more than before", func() bool { return runtime.NumGoroutine() <= goroutines })
}

func descriptors(t *testing.T) int {
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("descriptors cannot be counted here")
	}
	return len(open)
}

// A program is the proxy as a process of its own.
type program struct {
	t   *testing.T
	cmd *exec.Cmd
	in  *os.File // of its stdin
	end *os.File // of its stdout
	out *jsonrpc.LineReader
	log *lines
}

func startProgram(t *testing.T, env []string, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command("mcp-proxy", args...), log: &lines{}}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = p.log
	stdin, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdin, p.cmd.Stdout, p.in, p.end, p.out = stdin, stdout, in, out, jsonrpc.NewLineReader(out, jsonrpc.Limits{})
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stdin.Close()
	stdout.Close()
	t.Cleanup(func() {
		in.Close()
		out.Close()
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	return p
}

func (p *program) say(text string) { fmt.Fprintln(p.in, text) }

func (p *program) hear() string {
	p.t.Helper()
	line, err := p.out.ReadLine()
	if err != nil {
		p.t.Fatalf("%v\n%s", err, p.log.text.String())
	}
	return string(line)
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// D04: what SDK clients do to a server that they start: close stdin, then SIGTERM.
func TestD04_HalfCloseThenSIGTERM(t *testing.T) {
	record := filepath.Join(t.TempDir(), "record")
	p := startProgram(t, []string{"FAKE_LOG=" + record, "FAKE_STUBBORN=1"}, "stdio", "--", "fakeserver")
	p.say(initialize)
	p.hear()
	p.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}}`)
	s := &site{record: record}
	eventually(t, "the call", func() bool { return countPart(s.noted(), `"hang"`) == 1 })
	p.in.Close()
	time.Sleep(50 * time.Millisecond) // into the drain; the outcome is the same without
	began := time.Now()
	p.cmd.Process.Signal(syscall.SIGTERM)
	if got, want := p.hear(), fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"error":%s}`,
		jsonrpc.ConnectionClosed(-32000, "", "", jsonrpc.InFlight).Raw()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("exit: %v\n%s", err, p.log.text.String())
	}
	t.Logf("gone %v after SIGTERM", time.Since(began))
	noted := s.noted()
	pid, _ := strconv.Atoi(strings.Fields(noted[0])[0])
	if !gone(pid) {
		t.Error("the stubborn server lives on")
	}
	if countPart(noted, "notifications/cancelled") != 1 {
		t.Error("the server got", noted)
	}
}

// D03: what does not finish within the drain after a half-close hears so; a
// question hears at once that nobody will answer it.
func TestD03_HalfCloseExceedsDrain(t *testing.T) {
	record := filepath.Join(t.TempDir(), "record")
	p := startProgram(t, []string{"FAKE_LOG=" + record, "MCP_PROXY_DRAIN=500ms"}, "stdio", "--", "fakeserver")
	p.say(initialize)
	p.hear()
	p.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}}`)
	p.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"ask"}}`)
	p.hear()
	p.in.Close()
	if got := p.hear(); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":2,"error":{"code":-32000,`) {
		t.Error("the call that asked got", got)
	}
	if got, want := p.hear(), fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"error":%s}`,
		jsonrpc.ConnectionClosed(-32000, "", "", jsonrpc.InFlight).Raw()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("exit: %v\n%s", err, p.log.text.String())
	}
	s := &site{record: record}
	if countPart(s.noted(), "notifications/cancelled") != 1 {
		t.Error("the server got", s.noted())
	}
}

// Race D: stdout breaks with a call in flight. Nothing can be said any more, and
// nothing may crash.
func TestD01_BrokenStdout(t *testing.T) {
	record := filepath.Join(t.TempDir(), "record")
	p := startProgram(t, []string{"FAKE_LOG=" + record}, "stdio", "--", "fakeserver")
	p.say(initialize)
	p.hear()
	p.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}}`)
	s := &site{record: record}
	eventually(t, "the call", func() bool { return countPart(s.noted(), `"hang"`) == 1 })
	p.in.Close()
	p.end.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("exit: %v\n%s", err, p.log.text.String())
	}
	if n := p.log.count(`"msg":"client disconnected"`); n != 1 {
		t.Errorf("log:\n%s", p.log.text.String())
	}
	if countPart(s.noted(), "notifications/cancelled") != 1 {
		t.Error("the server got", s.noted())
	}
}

// SIGUSR1 asks what the servers do.
func TestStatus(t *testing.T) {
	p := startProgram(t, nil, "stdio", "--", "fakeserver")
	p.say(initialize)
	p.hear()
	p.cmd.Process.Signal(syscall.SIGUSR1)
	eventually(t, "the status", func() bool { return p.log.count(`"state":"running"`) == 1 })
	p.in.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("exit: %v\n%s", err, p.log.text.String())
	}
}

// serving starts the proxy as a server in a process of its own.
func serving(t *testing.T, env ...string) (*program, *site) {
	t.Helper()
	p := startProgram(t, env, "serve", "--listen", "127.0.0.1:0", "--", "fakeserver")
	_, rest, _ := strings.Cut(p.hear(), "http://")
	addr, _, _ := strings.Cut(rest, "/")
	return p, &site{t: t, url: "http://" + addr}
}

// D15: during the drain calls finish, with the questions that they ask, and new
// ones are refused. What does not finish hears so, and then the proxy is gone.
func TestD15_Drain(t *testing.T) {
	for _, name := range []string{"WebSocket", "HTTP", "SSE"} {
		t.Run(name, func(t *testing.T) {
			p, s := serving(t, "MCP_PROXY_SHUTDOWN_GRACE=5s")
			c := s.connectOver(name)
			c.call(1, "hang")
			c.call(2, "ask")
			eventually(t, "the question", func() bool { return c.questions() == 1 })
			p.cmd.Process.Signal(syscall.SIGTERM)
			eventually(t, "the drain", func() bool { return p.log.count("shutting down") == 1 })
			eventually(t, "a refusal", func() bool { // the drain begins a moment after it is logged
				c.call(3, "echo")
				return strings.Contains(c.await("3"), "not_sent")
			})
			c.accept()
			if got := c.await("2"); got != `{"action":"accept"}` {
				t.Error("the call that could finish got", got)
			}
			if got, want := c.await("1"), "!"+string(jsonrpc.ConnectionClosed(-32000, "", "", jsonrpc.InFlight).Raw()); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("exit: %v\n%s", err, p.log.text.String())
			}
			if n := p.log.count("client disconnected"); n != 1 {
				t.Errorf("log:\n%s", p.log.text.String())
			}
		})
	}
}

// D15: SIGTERM drains, and a second signal forces.
func TestD15_SecondSignalForces(t *testing.T) {
	for _, second := range []bool{false, true} {
		p, s := serving(t, "MCP_PROXY_SHUTDOWN_GRACE=4s")
		c := s.connect()
		c.call(1, "hang")
		c.call(2, "echo")
		c.await("2")
		p.cmd.Process.Signal(syscall.SIGTERM)
		if second {
			eventually(t, "the drain", func() bool { return p.log.count("shutting down") == 1 })
			p.cmd.Process.Signal(syscall.SIGTERM)
		}
		if got, want := c.await("1"), "!"+string(jsonrpc.ConnectionClosed(-32000, "", "", jsonrpc.InFlight).Raw()); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		err := p.cmd.Wait()
		if forced := err != nil; forced != second {
			t.Errorf("second signal %v: exit %v\n%s", second, err, p.log.text.String())
		}
	}
}
