//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
)

// A site is a whole proxy in this process, with real servers behind it and a
// real socket before it.
type site struct {
	t      *testing.T
	url    string // ws://HOST:PORT/ws
	log    *lines
	record string // where the servers of upstream "a" note what they get
}

// newSite runs a proxy with the fake upstreams a and b.
func newSite(t *testing.T) *site {
	s := &site{t: t, log: &lines{}, record: filepath.Join(t.TempDir(), "record")}
	server, err := exec.LookPath("fakeserver")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "mcp-proxy.yaml")
	text := fmt.Sprintf("limits: {sessions: 400}\nupstreams:\n  a: {command: %q, env: {FAKE_LOG: %q}, stopGrace: 500ms}\n  b: {command: %q, stopGrace: 500ms}\n",
		server, s.record, server)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := config.Load(config.Options{File: file})
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(cfg, slog.New(slog.NewTextHandler(s.log, nil)))
	e.start()
	front := &frontend.HTTP{Serve: e.serve, Known: e.known, Limits: limitsOf(cfg), Sessions: cfg.Limits.Sessions}
	listener := httptest.NewServer(front)
	s.url = "ws" + strings.TrimPrefix(listener.URL, "http") + "/ws"
	t.Cleanup(func() {
		front.Close()
		e.stop(context.Background())
		listener.Close()
	})
	return s
}

// A wsClient is a client over WebSocket that collects what it receives.
type wsClient struct {
	t    *testing.T
	conn *websocket.Conn
	done chan struct{}

	mu      sync.Mutex
	answers map[string]json.RawMessage // by id: the result, or the error with "!" before it
	asked   []jsonrpc.ID
	twice   []string
}

// connect initializes a new client.
func (s *site) connect() *wsClient {
	s.t.Helper()
	conn, _, err := websocket.DefaultDialer.Dial(s.url, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	c := &wsClient{t: s.t, conn: conn, done: make(chan struct{}), answers: map[string]json.RawMessage{}}
	go c.read()
	s.t.Cleanup(func() { conn.Close(); <-c.done })
	c.say(`{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"t","version":"1"}}}`)
	c.await("init")
	c.say(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

func (c *wsClient) read() {
	defer close(c.done)
	for {
		_, data, err := c.conn.ReadMessage()
		if err != nil {
			return
		}
		m, err := jsonrpc.Decode(data)
		if err != nil {
			c.t.Error(err)
			continue
		}
		c.mu.Lock()
		switch id := m.ID.String(); {
		case m.IsRequest():
			c.asked = append(c.asked, m.ID)
		case m.IsResponse():
			if c.answers[id] != nil {
				c.twice = append(c.twice, id)
			}
			c.answers[id] = m.Result
			if m.Error != nil {
				c.answers[id] = append([]byte("!"), m.Error...)
			}
		}
		c.mu.Unlock()
	}
}

func (c *wsClient) say(text string) {
	c.t.Helper()
	if err := c.conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

func (c *wsClient) call(id int, tool string) {
	c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q}}`, id, tool))
}

// await waits for the answer to a request.
func (c *wsClient) await(id string) string {
	c.t.Helper()
	var answer json.RawMessage
	if _, err := strconv.Atoi(id); err != nil {
		id = strconv.Quote(id)
	}
	eventually(c.t, "answer to "+id, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		answer = c.answers[id]
		return answer != nil
	})
	return string(answer)
}

// count returns how many answers satisfy ok.
func (c *wsClient) count(ok func(answer string) bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, a := range c.answers {
		if ok(string(a)) {
			n++
		}
	}
	return n
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
	s := newSite(t)
	c := s.connect()
	for i := range 200 {
		c.call(i, "a__hang")
	}
	for i := range 50 {
		c.call(1000+i, "b__ask")
	}
	eventually(t, "200 calls and 50 questions", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.asked) == 50 && countPart(s.noted(), `"hang"`) == 200
	})
	c.call(500, "a__crash")
	want := "!" + string(jsonrpc.ConnectionClosed(-32603, "a", "signal: killed", jsonrpc.InFlight).Raw())
	eventually(t, "one error for each call", func() bool {
		return c.count(func(a string) bool { return a == want }) == 201
	})
	for _, id := range c.asked {
		c.say(`{"jsonrpc":"2.0","id":` + id.String() + `,"result":{"action":"accept"}}`)
	}
	for i := range 50 {
		if got := c.await(strconv.Itoa(1000 + i)); got != `{"action":"accept"}` {
			t.Error("the other upstream answered", got)
		}
	}
	c.call(501, "a__echo")
	if got := c.await("501"); !strings.Contains(got, "structuredContent") {
		t.Error("the next call got", got)
	}
	if n := s.log.count("level=WARN"); n != 1 || s.log.count("in_flight=201 ") != 1 {
		t.Errorf("want one warning that says 201:\n%s", s.log.text.String())
	}
	if len(c.twice) > 0 {
		t.Error("answered twice:", c.twice)
	}
}

// D06, D37: a client vanishes with calls and a question open.
func TestD06_VanishedClient(t *testing.T) {
	s := newSite(t)
	c := s.connect()
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
	c.call(99, "a__ask")
	eventually(t, "99 calls and a question", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.asked) == 1 && countPart(s.noted(), `"hang"`) == 99
	})
	c.conn.NetConn().(interface{ SetLinger(int) error }).SetLinger(0) // RST
	c.conn.NetConn().Close()

	eventually(t, "the server's end", func() bool { return countPart(s.noted(), " end") == 1 })
	noted := s.noted()
	var after []string
	for i, l := range noted {
		if strings.Contains(l, `"ask"`) {
			after = noted[i+1:]
		}
	}
	if len(after) != 102 || !strings.Contains(after[0], `"id":1,"error":{"code":-32000`) {
		t.Errorf("after the close the server got:\n%s", strings.Join(after, "\n"))
	}
	if n := countPart(after, "notifications/cancelled"); n != 100 {
		t.Error(n, "cancellations")
	}
	pid, _ := strconv.Atoi(strings.Fields(noted[0])[0])
	eventually(t, "process and grandchild gone", func() bool { return gone(pid) && gone(child.StructuredContent.Pid) })
	if n := s.log.count("level=WARN"); n != 0 {
		t.Errorf("warnings:\n%s", s.log.text.String())
	}
}

// Nothing is left of clients that come, call and vanish.
func TestManyVanishingClients(t *testing.T) {
	total := 300
	if testing.Short() {
		total = 30
	}
	s := newSite(t)
	s.connect().conn.Close() // what is made once is made
	settled := func() bool { return len(children(os.Getpid())) == 0 }
	eventually(t, "no process", settled)
	before := descriptors(t)
	for range total / 10 {
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				c := s.connect()
				c.call(1, "a__echo")
				c.await("1")
				c.call(2, "b__hang")
				c.conn.NetConn().Close()
			})
		}
		wg.Wait()
	}
	eventually(t, "no process", settled)
	eventually(t, "no descriptor more than before", func() bool { return descriptors(t) <= before })
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

// D15: SIGTERM drains, and a second signal forces.
func TestD15_SecondSignalForces(t *testing.T) {
	for _, second := range []bool{false, true} {
		p := startProgram(t, []string{"MCP_PROXY_SHUTDOWN_GRACE=2s"}, "serve", "--listen", "127.0.0.1:0", "--", "fakeserver")
		where := p.hear()
		_, rest, _ := strings.Cut(where, "ws://")
		addr, _, _ := strings.Cut(rest, " ")
		s := &site{t: t, url: "ws://" + addr}
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
