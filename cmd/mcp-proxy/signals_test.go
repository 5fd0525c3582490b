//go:build unix

package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestSignalsTogetherAreOne(t *testing.T) {
	for _, test := range []struct {
		name string
		at   []time.Duration // after the first
		want int
	}{
		{"one", []time.Duration{0}, 1},
		{"at once", []time.Duration{0, 0, 0}, 1},
		{"within", []time.Duration{0, together - 1}, 1},
		{"apart", []time.Duration{0, together}, 2},
		{"a row is not one for ever", []time.Duration{0, together / 2, together, together + 1}, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in, out, done := make(chan os.Signal), make(chan os.Signal, 2), make(chan struct{})
				go passApart(in, out, done)
				began := time.Now()
				for _, at := range test.at {
					time.Sleep(time.Until(began.Add(at)))
					in <- syscall.SIGTERM
				}
				synctest.Wait()
				if len(out) != test.want {
					t.Errorf("%d were passed on, want %d", len(out), test.want)
				}
				close(done)
			})
		})
	}
}

// Whoever started the proxy may stop reading what it prints.
func TestNobodyReadsTheOutput(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("mcp-proxy", "serve", "--port", "0", "--log-level", "debug", "--", "fakeserver")
	out, err1 := cmd.StdoutPipe()
	log, err2 := cmd.StderrPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	url := regexp.MustCompile(`http://[^ ,]*/mcp`).FindString(line)
	if err := errors.Join(err, out.Close(), log.Close()); err != nil || url == "" {
		t.Fatal(line, err)
	}
	for range 2 { // which are logged
		if text, err := exec.Command("mcp-proxy", "call", "echo", "--url", url).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// Whoever started the proxy may never read its log: that stops neither calls nor the end.
func TestNobodyReadsTheLog(t *testing.T) {
	t.Parallel()
	in, log := fullPipe(t)
	cmd := exec.Command("mcp-proxy", "serve", "--port", "0", "--", "fakeserver")
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	url := regexp.MustCompile(`http://[^ ,]*/mcp`).FindString(line)
	if err != nil || url == "" {
		t.Fatal(line, err)
	}
	call := func() {
		if text, err := exec.Command("mcp-proxy", "call", "echo", "--url", url).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	call()
	eventually(t, "the number of dropped lines", func() bool {
		in.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		text, _ := io.ReadAll(in)
		call() // which is logged
		return bytes.Contains(text, []byte(`"log lines dropped: nobody read them, or there was no room for them","dropped":`))
	})
	cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// Two signals at once do not force: requests in flight finish.
func TestD15_TwoSignalsAtOnce(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"serve", "host", "stdio"} {
		t.Run(command, func(t *testing.T) {
			s, socket := behindHost(t)
			env := []string{"FAKE_LOG=" + s.record("a"), "MCP_PROXY_SHUTDOWN_GRACE=20s"}
			var p *program
			switch command {
			case "serve":
				var served *site
				p, served = serving(t, env...)
				s.url = served.url
			case "host":
				p = startProgram(t, env, "host", "--listen", "unix://"+socket, "--", "fakeserver")
				s.run("links: {far: {dial: unix://" + socket + "}}\n")
				eventually(t, "the link", func() bool { return s.linkedTo("main") })
			case "stdio":
				p = startProgram(t, env, "stdio", "--", "fakeserver")
				p.greet(layout{}, "hang")
				s.awaitNoted("a", `"hang"`, 1)
				p.twice()
				if got := p.hear(); got == "" {
					t.Error("the call got nothing")
				}
			}
			if command != "stdio" {
				c := s.connect()
				c.call(1, "ask")
				eventually(t, "the question", func() bool { return c.questions() == 1 })
				p.twice()
				eventually(t, "the shutdown", func() bool { return p.log.count("shutting down") == 1 })
				c.accept()
				if got := c.await("1"); got != `{"action":"accept"}` {
					t.Error("the call that could finish got", got)
				}
			}
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("exit: %v\n%s", err, p.log)
			}
		})
	}
}

// insist sends signals until the program has ended, as an impatient user does.
func (p *program) insist() error {
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	every := time.NewTicker(together / 3)
	defer every.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-every.C:
			p.cmd.Process.Signal(syscall.SIGTERM)
		}
	}
}

// twice sends two signals, as when a shell and a supervisor signal the group.
func (p *program) twice() {
	p.cmd.Process.Signal(syscall.SIGINT)
	p.cmd.Process.Signal(syscall.SIGTERM)
}
