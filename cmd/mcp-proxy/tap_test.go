//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"github.com/mcp-proxy/mcp-proxy/proxy"
)

// tapping starts a tap, and waits until it has begun.
func tapping(t *testing.T, env []string, args ...string) (cmd *exec.Cmd, out *lines) {
	t.Helper()
	cmd, out = exec.Command("mcp-proxy", append([]string{"tap"}, args...)...), &lines{}
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd, out
}

// tapped serves a fake server; operators may see the content of messages.
func tapped(t *testing.T) (p *program, s *site, env []string) {
	t.Helper()
	dir := shortDir(t)
	env = []string{"XDG_RUNTIME_DIR=" + dir}
	s = emptySite(t)
	config := s.write("c.yaml", "listen: [\"127.0.0.1:0\"]\nadmin: {payloads: true}\nupstreams: {main: {command: fakeserver}}\n")
	p = startProgram(t, env, "serve", "--config", config)
	s.url = p.url()
	return p, s, env
}

// A tap shows messages until it is interrupted, which is no failure.
func TestTap(t *testing.T) {
	p, s, env := tapped(t)
	tap, out := tapping(t, env, "--method", "tools/*")
	client := s.connect()
	calls := 0
	eventually(t, "a line", func() bool {
		calls++
		client.get(calls, "echo")
		return out.count(`"kind":"response","method":"tools/call"`) > 0
	})
	eventually(t, "a request of the client", func() bool { // the tap may have begun within a call
		calls++
		client.get(calls, "echo")
		return out.count(`"side":"client",`) > 0 && out.count(`"kind":"request","method":"tools/call"`) > 1
	})
	lines := strings.Split(out.String(), "\n")
	line := lines[slices.IndexFunc(lines, func(l string) bool {
		return strings.Contains(l, `"side":"client"`) && strings.Contains(l, `"kind":"request"`)
	})]
	var passed proxy.Passed
	if err := json.Unmarshal([]byte(line), &passed); err != nil || passed.Side != "client" || passed.Tool != "echo" || passed.Message != nil {
		t.Errorf("%v: %s", err, line)
	}
	tap.Process.Signal(syscall.SIGINT)
	if err := tap.Wait(); err != nil {
		t.Errorf("it ended with %v: %s", err, out)
	}
	tap, _ = tapping(t, env)
	p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
	tap.Wait()
}

// A recording has all messages until it is interrupted, and only its owner can read the file. If the
// process dies, it is incomplete.
func TestTapRecord(t *testing.T) {
	t.Parallel()
	p, s, env := tapped(t)
	file, broken := filepath.Join(s.dir, "r.ndjson"), filepath.Join(s.dir, "b.ndjson")
	whole, said := tapping(t, env, "--record", file)
	dying, saidLast := tapping(t, env, "--record", broken)
	for _, out := range []*lines{said, saidLast} {
		eventually(t, "recording", func() bool { return out.count("recording to") == 1 })
	}
	client := s.connect()
	for i := range 100 {
		client.get(i+1, "echo")
	}
	whole.Process.Signal(syscall.SIGINT)
	if err := whole.Wait(); err != nil {
		t.Errorf("it ended with %v: %s", err, said)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	if info, _ := os.Stat(file); info.Mode().Perm() != 0o600 {
		t.Errorf("its mode is %v", info.Mode())
	}
	if want := fmt.Sprintf(`{"end":true,"messages":%d}`, len(all)-2); string(all[len(all)-1]) != want || !bytes.HasPrefix(all[0], []byte(`{"recording":1,`)) {
		t.Errorf("it begins with %s and ends with %s, want %s", all[0], all[len(all)-1], want)
	}
	for _, part := range []string{`"side":"client","way":"in"`, `"side":"upstream","way":"out"`, `"side":"upstream","way":"in"`, `"side":"client","way":"out"`} {
		n := 0
		for _, line := range all {
			if bytes.Contains(line, []byte(part)) && bytes.Contains(line, []byte(`"method":"tools/call"`)) && bytes.Contains(line, []byte(`"message":{`)) {
				n++
			}
		}
		if n != 100 {
			t.Errorf("%d messages with %s", n, part)
		}
	}
	if text, code := command(t, env, "tap", "--record", file); code != exitError || !strings.Contains(text, "file exists") {
		t.Errorf("a file that is there: %d %s", code, text)
	}
	p.cmd.Process.Kill()
	if err := dying.Wait(); dying.ProcessState.ExitCode() != exitError || saidLast.count("is incomplete") != 1 {
		t.Errorf("it ended with %v: %s", err, saidLast)
	}
}

// Bad usage, and a process that does not allow what the tap requests.
func TestTapRefused(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	env := []string{"XDG_RUNTIME_DIR=" + dir}
	serving(t, env...)
	onlyOneSocket(t, dir)
	for args, want := range map[string]int{
		"--payloads": exitError, "--record=x": exitError,
		"--tool=[": exitUsage, "--record=x --tool=a": exitUsage, "--errors=x": exitUsage, "a": exitUsage,
	} {
		text, code := command(t, env, append([]string{"tap"}, strings.Fields(args)...)...)
		if code != want || strings.Count(text, "\n") != 1 {
			t.Errorf("%s: %d %q", args, code, text)
		}
		if args == "--tool=[" && !strings.HasPrefix(text, `mcp-proxy: tool "[": `) {
			t.Errorf("the filter is not named: %q", text)
		}
	}
	if _, err := os.Stat("x"); err == nil {
		t.Error("a file was made for nothing")
	}
}

// A message is one line that fits the terminal, without escape sequences.
func TestReadableMessage(t *testing.T) {
	for line, want := range map[string]string{
		`{"leftOut":3}`: "… 3 left out",
		`{"time":"2026-01-02T15:04:05.1Z","side":"upstream","way":"in","session":"ABCDEFGH","upstream":"files","kind":"response","method":"tools/call","id":7,"tool":"r\u001b[2J","bytes":99,"tookMs":1.5,"error":{"code":-32603,"reason":"timeout"}}`: "ABCDEFGH files → proxy                tools/call r\\u001b[2J response id 7 99 B 1.5ms error -32603 timeout",
		`{"time":"2026-01-02T15:04:05.1Z","side":"client","way":"out","session":"A","client":"c","kind":"notification","method":"x","bytes":1,"message":{"a":"\u009b"}}`:                                                                               "A        proxy → c                    x 1 B\n{\"a\":\"\\u009b\"}",
	} {
		got := readableMessage([]byte(line), 0, false)
		if strings.HasPrefix(line, `{"time"`) {
			_, got, _ = strings.Cut(got, " ")
		}
		if got != want {
			t.Errorf("%s\n got %q\nwant %q", line, got, want)
		}
		if first, _, _ := strings.Cut(readableMessage([]byte(line), 40, false), "\n"); utf8.RuneCountInString(first) > 40 {
			t.Errorf("%q is too wide", first)
		}
	}
}
