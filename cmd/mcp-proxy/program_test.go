//go:build unix

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

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
	return startProgramIn(t, nil, env, append([]string{"mcp-proxy"}, args...)...)
}

// startProgramIn starts the proxy, or a program that becomes it.
func startProgramIn(t *testing.T, attr *syscall.SysProcAttr, env []string, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(args[0], args[1:]...), log: &lines{}}
	p.cmd.SysProcAttr = attr
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
		p.t.Fatalf("%v\n%s", err, p.log)
	}
	return string(line)
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// url reads the line in which the program says where it listens, and returns http://HOST:PORT.
func (p *program) url() string {
	_, rest, _ := strings.Cut(p.hear(), "http://")
	address, _, _ := strings.Cut(rest, "/")
	return "http://" + address
}

// serving starts the proxy as a server in a process of its own.
func serving(t *testing.T, env ...string) (*program, *site) {
	t.Helper()
	p := startProgram(t, env, "serve", "--listen", "127.0.0.1:0", "--", "fakeserver")
	return p, &site{t: t, url: p.url()}
}

// greet initializes a client of the site's era, and calls a tool of a.
func (p *program) greet(l layout, tool string) (code int) {
	p.t.Helper()
	if l.client != mcp.Modern {
		p.say(initialize)
		p.hear()
		p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q}}`, tool))
		return jsonrpc.CodeConnectionClosed
	}
	p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"_meta":{%q:"2026-07-28",%q:{}}}}`,
		tool, mcp.KeyVersion, mcp.KeyCapabilities))
	return jsonrpc.CodeInternalError
}

// D04: SDK clients close the stdin of a server that they start, then send SIGTERM.
func TestD04_HalfCloseThenSIGTERM(t *testing.T) {
	t.Parallel()
	for _, l := range append([]layout{{}}, otherPairs...) {
		t.Run(l.pair(), func(t *testing.T) { halfCloseThenSIGTERM(t, l) })
	}
}

func halfCloseThenSIGTERM(t *testing.T, l layout) {
	record := filepath.Join(t.TempDir(), "record")
	p := startProgram(t, []string{"FAKE_LOG=" + record, "FAKE_STUBBORN=1", "FAKE_ERA=" + string(l.era)}, "stdio", "--", "fakeserver")
	code := p.greet(l, "hang")
	eventually(t, "the call", func() bool { return countPart(notedIn(record), `"hang"`) == 1 })
	p.in.Close()
	time.Sleep(50 * time.Millisecond) // during the drain; without the wait the outcome is the same
	began := time.Now()
	p.cmd.Process.Signal(syscall.SIGTERM)
	if got, want := p.hear(), fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"error":%s}`,
		jsonrpc.ConnectionClosed(code, "", jsonrpc.Cause{}, jsonrpc.InFlight).Raw()); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("exit: %v\n%s", err, p.log)
	}
	if d := time.Since(began); d > 3*time.Second { // 1.5 s, and a margin for slow machines
		t.Errorf("gone %v after SIGTERM", d)
	}
	noted := notedIn(record)
	for _, line := range noted {
		if pid, _ := strconv.Atoi(strings.Fields(line)[0]); !ended(pid) {
			t.Error("a stubborn server lives on")
		}
	}
	if countPart(noted, "notifications/cancelled") != 1 {
		t.Error("the server got", noted)
	}
}

// D04 with the upstreams elsewhere: the proxy ends as soon, and the server gets what a local
// one would.
func TestD04_Elsewhere(t *testing.T) {
	t.Parallel()
	for _, place := range places {
		t.Run(place, func(t *testing.T) {
			switch place {
			case "local":
				t.Skip("is above")
			case "WebSocket link":
				t.Skip("nothing listens for a host on stdio")
			}
			s := emptySite(t)
			s.layout = layout{place: place, env: `FAKE_STUBBORN: "1"`}
			p := startProgram(t, nil, "stdio", "--config", s.write("mcp-proxy.yaml", s.config()))
			p.greet(s.layout, "a__hang")
			s.awaitNoted("a", `"hang"`, 1)
			p.in.Close()
			began := time.Now()
			p.cmd.Process.Signal(syscall.SIGTERM)
			if got, want := p.hear(), fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"error":%s}`,
				jsonrpc.ConnectionClosed(-32000, "", jsonrpc.Cause{}, jsonrpc.InFlight).Raw()); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("exit: %v\n%s", err, p.log)
			}
			t.Logf("gone %v after SIGTERM", time.Since(began))
			s.heardFarewell()
			if s.layout.remote() { // the server keeps running: only its session ends
				s.awaitNoted("a", " end", 1)
				return
			}
			eventually(t, "the end of the stubborn server", func() bool { return s.serversEnded("a") })
		})
	}
}

// D03: calls that do not finish within the drain after a half-close fail; a question fails at
// once, since no client can answer it any more.
func TestD03_HalfCloseExceedsDrain(t *testing.T) {
	t.Parallel()
	record := filepath.Join(t.TempDir(), "record")
	p := startProgram(t, []string{"FAKE_LOG=" + record, "MCP_PROXY_DRAIN=500ms"}, "stdio", "--", "fakeserver")
	p.say(initialize)
	p.hear()
	p.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}}`)
	p.say(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"ask"}}`)
	p.hear()
	p.say(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"hang"}}`)
	p.in.Close()
	if got := p.hear(); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":2,"error":{"code":-32000,`) {
		t.Error("the call that asked got", got)
	}
	var got, want []string
	for _, id := range []int{1, 3} {
		got = append(got, p.hear())
		want = append(want, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":%s}`, id, jsonrpc.ConnectionClosed(-32000, "", jsonrpc.Cause{}, jsonrpc.InFlight).Raw()))
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("exit: %v\n%s", err, p.log)
	}
	// The first call may have waited for the question: the end of stdin ends it.
	noted := notedIn(record)
	if countPart(noted, "notifications/cancelled") != 1 || countPart(noted, `"requestId":4,`) != 1 {
		t.Error("the server got", noted)
	}
}

// Race D: stdout breaks with a call in flight. No answer can be written, and nothing may
// crash.
func TestD01_BrokenStdout(t *testing.T) {
	record := filepath.Join(t.TempDir(), "record")
	p := startProgram(t, []string{"FAKE_LOG=" + record}, "stdio", "--", "fakeserver")
	p.say(initialize)
	p.hear()
	p.say(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}}`)
	eventually(t, "the call", func() bool { return countPart(notedIn(record), `"hang"`) == 1 })
	p.in.Close()
	p.end.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("exit: %v\n%s", err, p.log)
	}
	if n := p.log.count(`"msg":"client disconnected"`); n != 1 {
		t.Errorf("log:\n%s", p.log)
	}
	if countPart(notedIn(record), "notifications/cancelled") != 1 {
		t.Error("the server got", notedIn(record))
	}
}

// D15: during the drain calls finish, with the questions that they ask, and new
// ones are refused. Calls that do not finish fail, and then the proxy ends.
func TestD15_Drain(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"WebSocket", "HTTP", "SSE", "modern WebSocket", "modern HTTP"} {
		t.Run(name, func(t *testing.T) {
			p, s := serving(t, "MCP_PROXY_SHUTDOWN_GRACE=3500ms")
			modern := strings.HasPrefix(name, "modern")
			if modern {
				s.layout.client = mcp.Modern
			}
			c := s.connectOver(name)
			c.call(2, "ask")
			eventually(t, "the question", func() bool { return c.questions() == 1 })
			c.callWithToken(1, "hang")
			eventually(t, "the call", func() bool { return c.heardOf("progress") == 1 })
			p.cmd.Process.Signal(syscall.SIGTERM)
			eventually(t, "the drain", func() bool { return p.log.count("shutting down") == 1 })
			eventually(t, "a refusal", func() bool { // the drain begins shortly after it is logged
				c.call(3, "echo")
				return strings.Contains(c.await("3"), "not_sent")
			})
			c.accept()
			if got := c.await("2"); got != `{"action":"accept"}` && !modern || modern && !strings.Contains(got, "not_sent") {
				t.Error("the call that asked got", got)
			}
			if got := c.await("1"); got != s.ending() {
				t.Error("the call that hangs got", got)
			}
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("exit: %v\n%s", err, p.log)
			}
			if n := p.log.count("client disconnected"); n != 1 && name != "modern HTTP" {
				t.Errorf("log:\n%s", p.log)
			}
		})
	}
}

// D04, D15: a server with a call has time to clear up between the end of stdin and SIGTERM, as
// one without has: its whole stopGrace with serve, and with stdio what the client's program
// leaves. A terminal that is closed ends stdio in the same way.
func TestD15_BusyServerClearsUp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		command, clears string
		signal          syscall.Signal
	}{{"serve", "1s", syscall.SIGTERM}, {"stdio", "300ms", syscall.SIGTERM}, {"stdio", "300ms", syscall.SIGHUP}} {
		command, clears := tt.command, tt.clears
		t.Run(command+" "+tt.signal.String(), func(t *testing.T) {
			record := filepath.Join(t.TempDir(), "record")
			env := []string{"FAKE_LOG=" + record, "FAKE_CLEARS=" + clears, "MCP_PROXY_SHUTDOWN_GRACE=2600ms"}
			var p *program
			if command == "stdio" {
				p = startProgram(t, env, "stdio", "--", "fakeserver")
				p.greet(layout{}, "hang")
			} else {
				var s *site
				p, s = serving(t, env...)
				s.connect().call(1, "hang")
			}
			eventually(t, "the call", func() bool { return countPart(notedIn(record), `"hang"`) == 1 })
			p.cmd.Process.Signal(tt.signal)
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("exit: %v\n%s", err, p.log)
			}
			if countPart(notedIn(record), "cleared") != 1 {
				t.Errorf("the server was not left in peace:\n%s", p.log)
			}
		})
	}
}

// D15: SIGTERM drains, and a later second signal forces the end.
func TestD15_SecondSignalForces(t *testing.T) {
	t.Parallel()
	for _, second := range []bool{false, true} {
		p, s := serving(t, "MCP_PROXY_SHUTDOWN_GRACE=4s")
		c := s.connect()
		c.call(1, "hang")
		c.call(2, "echo")
		c.await("2")
		p.cmd.Process.Signal(syscall.SIGTERM)
		end := p.cmd.Wait
		if second {
			eventually(t, "the drain", func() bool { return p.log.count("shutting down") == 1 })
			end = p.insist
		}
		err := end()
		if got, want := c.await("1"), "!"+string(jsonrpc.ConnectionClosed(-32000, "", jsonrpc.Cause{}, jsonrpc.InFlight).Raw()); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if forced := err != nil; forced != second {
			t.Errorf("second signal %v: exit %v\n%s", second, err, p.log)
		}
	}
}

// Commands that print for people fail if that cannot be written.
func TestPrintingOnAFullDisk(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no full disk:", err)
	}
	defer full.Close()
	for _, args := range [][]string{
		{"tools", "--", "fakeserver"}, {"tools", "--json", "--", "fakeserver"}, {"call", "echo", "--", "fakeserver"},
		{"doctor", "--", "fakeserver"}, {"schema"}, {"version"},
	} {
		var said strings.Builder
		cmd := exec.Command("mcp-proxy", args...)
		cmd.Stdout, cmd.Stderr = full, &said
		_ = cmd.Run()
		if cmd.ProcessState.ExitCode() != exitError || !strings.Contains(said.String(), "no space left on device") {
			t.Errorf("%s exits with %d and says\n%s", args, cmd.ProcessState.ExitCode(), &said)
		}
	}
}

// A client that leaves is a clean end, also if there is an answer for it. A stdout or stdin that breaks is none.
func TestBrokenStdio(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no full disk:", err)
	}
	defer full.Close()
	unread, left, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer left.Close()
	unread.Close()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	open, stdin, err := os.Pipe() // which does not end
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	defer stdin.Close()
	for name, tt := range map[string]struct {
		in   io.Reader
		out  io.Writer
		code int
		says string
	}{
		"the client leaves": {open, left, exitOK, "stdout: broken pipe"},
		"a full disk":       {open, full, exitError, "mcp-proxy: write /dev/stdout: no space left on device\n"},
		"a directory":       {dir, nil, exitError, "mcp-proxy: read /dev/stdin: is a directory\n"},
	} {
		fmt.Fprintln(stdin, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
		var log strings.Builder
		cmd := exec.Command("mcp-proxy", "stdio", "--", "fakeserver")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = tt.in, tt.out, &log
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != tt.code || !strings.Contains(log.String(), tt.says) {
			t.Errorf("%s: exit code %d, want %d:\n%s", name, code, tt.code, log.String())
		}
	}
}

// The error of an address that is in use says what to do; the exit code is 1.
func TestAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	address := l.Addr().String()
	s := emptySite(t)
	admin := s.write("admin.yaml", "upstreams: {a: {command: fakeserver}}\nadmin: {listen: [\""+address+"\"]}\n")
	cluster := s.write("cluster.yaml", "upstreams: {a: {command: fakeserver}}\ntokenFile: "+s.write("token", "x")+
		"\ncluster: {listen: \""+address+"\", keyFile: "+s.write("keys", strings.Repeat("ab", 32))+"}\n")
	for _, tt := range []struct {
		where string
		args  []string
	}{
		{"with --listen", []string{"serve", "--listen", address, "--", "fakeserver"}},
		{"with --listen", []string{"host", "--listen", "tcp://" + address, "--", "fakeserver"}},
		{"in admin.listen", []string{"serve", "--listen", "127.0.0.1:0", "--config", admin}},
		{"in admin.listen", []string{"host", "--listen", "tcp://127.0.0.1:0", "--config", admin}},
		{"in cluster.listen", []string{"serve", "--listen", "127.0.0.1:0", "--config", cluster}},
	} {
		p := startProgram(t, nil, tt.args...)
		err := p.cmd.Wait()
		if code := p.cmd.ProcessState.ExitCode(); code != exitError {
			t.Errorf("%s: exit code %d, %v", tt.args, code, err)
		}
		want := "in use: another program listens there; stop that one, or choose another address " + tt.where
		if n := p.log.count(want); n != 1 || p.log.count(address) != 1 {
			t.Errorf("%s:\n%s", tt.args, p.log)
		}
	}
}

// SIGTERM ends stdio at once; an open listen still gets its result.
func TestStdioSIGTERMEndsListens(t *testing.T) {
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(string(era), func(t *testing.T) {
			p := startProgram(t, []string{"FAKE_ERA=" + string(era)}, "stdio", "--", "fakeserver")
			p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":"l","method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},"_meta":{%q:"2026-07-28",%q:{}}}}`,
				mcp.KeyVersion, mcp.KeyCapabilities))
			if got := p.hear(); !strings.Contains(got, "notifications/subscriptions/acknowledged") {
				t.Fatal("first came", got)
			}
			p.cmd.Process.Signal(syscall.SIGTERM)
			if got := p.hear(); !strings.Contains(got, `"id":"l","result":{"resultType":"complete"`) {
				t.Error("the listen ended with", got)
			}
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("exit: %v\n%s", err, p.log)
			}
		})
	}
}

// If the only server dies at its start, initialize fails with the reason.
func TestSoleServerDies(t *testing.T) {
	t.Parallel()
	for _, era := range []mcp.Era{mcp.Legacy, mcp.Modern} {
		t.Run(string(era), func(t *testing.T) {
			p := startProgram(t, nil, "stdio", "--", "sh", "-c", "exit 3")
			if era == mcp.Legacy {
				p.say(initialize)
			} else {
				p.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{"_meta":{%q:"2026-07-28",%q:{}}}}`, mcp.KeyVersion, mcp.KeyCapabilities))
			}
			if got := p.hear(); !strings.Contains(got, `"id":0,"error":`) || !strings.Contains(got, `"phase":"not_sent"`) {
				t.Error("got", got)
			}
			if era == mcp.Legacy {
				p.say(initialize) // the line may come again
				if got := p.hear(); !strings.Contains(got, `"reason":"connection_closed"`) {
					t.Error("got", got)
				}
			}
			p.in.Close()
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("exit: %v\n%s", err, p.log)
			}
		})
	}
}

// command runs the program and returns what it prints and its exit code.
func command(t *testing.T, env []string, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.Command("mcp-proxy", args...)
	cmd.Env = append(os.Environ(), env...)
	text, err := cmd.CombinedOutput()
	if _, ended := err.(*exec.ExitError); err != nil && !ended {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}
