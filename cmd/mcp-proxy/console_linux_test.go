package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// onTerminal starts a command on a new terminal, which is its controlling one: ^C is a signal.
func onTerminal(t *testing.T, wide uint16, env []string, args ...string) (near *os.File, drawn *screen, cmd *exec.Cmd) {
	t.Helper()
	return startOnTerminal(t, wide, env, exec.Command("mcp-proxy", args...))
}

func startOnTerminal(t *testing.T, wide uint16, env []string, cmd *exec.Cmd) (*os.File, *screen, *exec.Cmd) {
	t.Helper()
	near, far := terminal(t, wide, 40)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = far, far, far
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	far.Close()
	drawn := new(screen)
	done := make(chan struct{})
	go drawn.read(near, done)
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		<-done
	})
	return near, drawn, cmd
}

func (s *screen) plain() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.ReplaceAll(escapes.ReplaceAllString(s.text.String(), ""), "\r\n", "\n")
}

func (s *screen) awaitLine(t *testing.T, pattern string) string {
	t.Helper()
	line := regexp.MustCompile(pattern)
	var found string
	for end := time.Now().Add(20 * time.Second); found == ""; time.Sleep(5 * time.Millisecond) {
		if found = line.FindString(s.plain()); found == "" && time.Now().After(end) {
			t.Fatalf("nothing says %s in\n%s", pattern, s.plain())
		}
	}
	return found
}

// A whole session on a terminal: addresses, upstreams that are ready or failed, clients, a server that is
// killed, what ^C waits for, and another ^C.
func TestConsoleSession(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	s := emptySite(t)
	file := s.write("mcp-proxy.yaml", `
listen: ["127.0.0.1:0"]
upstreams:
  files: {command: fakeserver, inheritEnv: [all]}
  broken: {command: sh, args: [-c, "printf '\u256d\u2500\u256e\\n\u2502boom\u2502\\n' >&2; exit 3"]}
`)
	near, drawn, cmd := onTerminal(t, 100, []string{"XDG_RUNTIME_DIR=" + dir, "TERM=xterm", "NO_COLOR="}, "serve", "--config", file)
	s.url = strings.TrimSuffix(drawn.awaitLine(t, `http://[0-9.:]+/mcp`), "/mcp")
	drawn.awaitLine(t, `(?m)^\d\d:\d\d:\d\d  files   ready  \d+ tools?.*  \d+\.\d s$`)
	drawn.awaitLine(t, `(?m)^\d\d:\d\d:\d\d  broken  failed  did not start: exit status 3: boom\n +run its command by hand`)
	drawn.awaitLine(t, `(?m)^\d\d:\d\d:\d\d  broken  │ boom$`)
	if !drawn.has("\x1b[32mready\x1b[0m") {
		t.Errorf("there are no colours in %q", drawn.plain())
	}
	c := s.connect()
	drawn.awaitLine(t, `client  t connected \(websocket|client  \S+ is here \(`)
	c.call(1, "files__crash")
	if got := c.await("1"); !strings.Contains(got, "Connection closed") {
		t.Error("the call got", got)
	}
	drawn.awaitLine(t, `files   ended unexpectedly: .*1 request was in flight\n +more: mcp-proxy explain [0-9a-z]{8}`)
	c.call(4, "files__echo")
	c.await("4")
	drawn.awaitLine(t, `(?m)^\d\d:\d\d:\d\d  files   ready again  [0-9.]+m?s later$`)
	c.call(2, "files__hang")
	c.call(3, "files__hang")
	eventually(t, "two calls", func() bool {
		out, _ := command(t, []string{"XDG_RUNTIME_DIR=" + dir}, "calls")
		return strings.Count(out, "hang") == 2
	})
	io.WriteString(near, "\x03")
	drawn.awaitLine(t, `(?m)^(\^C\r)?.*proxy   stopping: waiting for 2 calls \(files hang for \S+, files hang`)
	drawn.awaitLine(t, `Ctrl-C again`)
	time.Sleep(together + 10*time.Millisecond) // two of them together are one
	io.WriteString(near, "\x03")
	if err := cmd.Wait(); err == nil {
		t.Error("it was not forced")
	}
	drawn.awaitLine(t, `client  \S+ disconnected after `)
	text := drawn.plain()
	for _, jargon := range []string{"principal", "in_flight", "level", "left out of a merged list", "listening on", "╭"} {
		if strings.Contains(text, jargon) {
			t.Errorf("it says %q:\n%s", jargon, text)
		}
	}
	if n := strings.Count(text, "broken  failed"); n != 1 || strings.Contains(text, "broken  failed to") {
		t.Errorf("that broken has failed is not told once:\n%s", text)
	}
}

// The upstreams of a link are reported when the link is up, and only once although it was lost.
func TestConsoleLinks(t *testing.T) {
	s := emptySite(t)
	socket := "unix://" + shortDir(t) + "/s"
	far := s.write("far.yaml", `
upstreams:
  files: {command: fakeserver, inheritEnv: [all]}
  broken: {command: sh, args: [-c, "exit 3"]}
`)
	host := startProgram(t, nil, "host", "--config", far, "--listen", socket)
	host.hear()
	file := s.write("mcp-proxy.yaml", `listen: ["127.0.0.1:0"]`+"\nlinks: {tools: {dial: '"+socket+"'}}\n")
	near, drawn, cmd := onTerminal(t, 100, []string{"XDG_RUNTIME_DIR=" + shortDir(t), "NO_COLOR=1"}, "serve", "--config", file)
	drawn.awaitLine(t, `(?m)^\d\d:\d\d:\d\d  tools   offers broken, files$`)
	drawn.awaitLine(t, `(?m)^\d\d:\d\d:\d\d  files   ready  \d+ tools?.*  \d+\.\d s$`)
	drawn.awaitLine(t, `(?m)^\d\d:\d\d:\d\d  broken  failed  did not start: exit status 3\n +run mcp-proxy doctor on its host`)
	host.cmd.Process.Kill()
	drawn.awaitLine(t, `tools   link lost`)
	startProgram(t, nil, "host", "--config", far, "--listen", socket).hear()
	eventually(t, "the link", func() bool { return strings.Count(drawn.plain(), "tools   offers broken, files") == 2 })
	io.WriteString(near, "\x03")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if text := drawn.plain(); strings.Count(text, "files   ready") != 1 || strings.Count(text, "broken  failed") != 1 {
		t.Errorf("what is behind the link is not told of once:\n%s", text)
	}
}

// Without colours and on a narrow terminal the lines are the same; so they are with host.
func TestConsoleNarrow(t *testing.T) {
	near, drawn, cmd := onTerminal(t, 40, []string{"NO_COLOR=1", "XDG_RUNTIME_DIR=" + shortDir(t)}, "host", "--listen", "unix://"+shortDir(t)+"/s", "--", "fakeserver")
	drawn.awaitLine(t, `(?m)^main    ready  `)
	if drawn.has("\x1b") {
		t.Errorf("there are colours in %q", drawn.text.String())
	}
	io.WriteString(near, "\x03")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	drawn.awaitLine(t, `stopping: waiting for`)
	for _, line := range strings.Split(drawn.plain(), "\n") {
		line = line[strings.LastIndex(line, "\r")+1:]
		if n := len([]rune(line)); n > 40 && strings.Contains(strings.TrimSpace(line), " ") && !strings.Contains(line, "://") {
			t.Errorf("%d columns: %q", n, line)
		}
	}
}

// Without a terminal no server is tried at the start, and stdout has the address for programs.
func TestTextWithoutTerminal(t *testing.T) {
	record := t.TempDir() + "/record"
	p := startProgram(t, []string{"FAKE_LOG=" + record}, "serve", "--log-format", "text", "--port", "0", "--", "fakeserver")
	if got := p.hear(); !strings.HasPrefix(got, "listening on http://127.0.0.1:") {
		t.Error("stdout has", got)
	}
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if text := p.log.String(); !strings.Contains(text, "INF shutting down signal=terminated") || strings.ContainsAny(text, "\x1b\r") {
		t.Errorf("stderr has %q", text)
	}
	if _, err := os.Stat(record); err == nil {
		t.Error("the server was started")
	}
}

// Closing the terminal stops serve and host and their servers. With nohup they continue, and the
// signal does not reload either.
func TestTerminalIsClosed(t *testing.T) {
	t.Parallel()
	hangUps := make(chan os.Signal, 1)
	signal.Notify(hangUps, syscall.SIGHUP) // a signal that is ignored here would be ignored there
	defer signal.Stop(hangUps)
	for _, command := range []string{"serve", "host"} {
		for _, nohup := range []bool{false, true} {
			t.Run(command+map[bool]string{true: " with nohup"}[nohup], func(t *testing.T) {
				dir := shortDir(t)
				s := emptySite(t)
				file := s.write("mcp-proxy.yaml", "listen: [\"127.0.0.1:0\"]\nupstreams:\n  files: {command: fakeserver, inheritEnv: [all], session: shared}\n")
				args := []string{command, "--config", file}
				if command == "host" {
					args = append(args, "--listen", "unix://"+dir+"/link")
				}
				program := exec.Command("mcp-proxy", args...)
				if nohup { // the shell's trap: nohup itself would redirect the terminal
					program = exec.Command("sh", append([]string{"-c", `trap "" HUP; exec "$@"`, "sh", "mcp-proxy"}, args...)...)
				}
				near, drawn, cmd := startOnTerminal(t, 100, []string{"XDG_RUNTIME_DIR=" + dir, "TERM=xterm"}, program)
				drawn.awaitLine(t, `files   ?ready`)
				if nohup {
					cmd.Process.Signal(syscall.SIGHUP)
					status := exec.Command("mcp-proxy", "status") // a reload would have begun before the answer
					status.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir)
					if out, err := status.CombinedOutput(); err != nil {
						t.Errorf("status: %v\n%s", err, out)
					}
					if drawn.has("reloaded") {
						t.Errorf("an ignored SIGHUP reloads:\n%s", drawn.plain())
					}
					cmd.Process.Signal(syscall.SIGTERM)
				} else {
					near.Close()
				}
				ended := make(chan error, 1)
				go func() { ended <- cmd.Wait() }()
				select {
				case err := <-ended:
					if err != nil {
						t.Error("it ended with", err)
					}
				case <-time.After(20 * time.Second):
					t.Errorf("it runs on:\n%s", drawn.plain())
				}
			})
		}
	}
}

// At a terminal each upstream starts once, and again for clients with capabilities, to show whether it
// is ready and to know its lists.
func TestConsoleLearnsFromTrials(t *testing.T) {
	t.Parallel()
	s := emptySite(t)
	upstreams := ""
	for _, name := range []string{"a", "b", "c"} {
		upstreams += fmt.Sprintf("  %s: {command: sh, args: [-c, \"sleep 0.3; exec fakeserver\"], inheritEnv: [all], env: {FAKE_LOG: %q}}\n", name, s.record(name))
	}
	file := s.write("mcp-proxy.yaml", "listen: [\"127.0.0.1:0\"]\ncacheDir: "+s.dir+"/cache\nupstreams:\n"+upstreams+"  broken: {command: /no/such/command}\n")
	near, drawn, cmd := onTerminal(t, 100, []string{"XDG_RUNTIME_DIR=" + s.dir, "TERM=xterm", "NO_COLOR="}, "serve", "--config", file)
	for _, name := range []string{"a", "b", "c"} {
		drawn.awaitLine(t, `(?m)^\d\d:\d\d:\d\d  `+name+`       ready  19 tools, 1 resource  \d+\.\d s$`)
	}
	drawn.awaitLine(t, `(?m)^\d\d:\d\d:\d\d  broken  failed  did not start: command not found`)
	for _, name := range []string{"a", "b", "c"} {
		eventually(t, "the second start", func() bool { return countPart(s.notedBy(name), `"initialize"`) == 2 })
	}
	eventually(t, "the ends of the trials", func() bool { return len(children(cmd.Process.Pid)) == 0 })
	near.Write([]byte{3})
	cmd.Wait()
	for _, name := range []string{"a", "b", "c"} {
		if n := countPart(s.notedBy(name), `"initialize"`); n != 2 {
			t.Errorf("%s started %d times", name, n)
		}
	}
	if n := strings.Count(drawn.plain(), "broken  failed"); n != 1 {
		t.Errorf("%d failures in %s", n, drawn.plain())
	}
}
