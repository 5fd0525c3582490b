//go:build unix

package upstream

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

func TestD48_DiesBeforeItAnswersInitialize(t *testing.T) {
	r := newRig(t, fakeCommand("dies"))
	c := r.attach("k")
	c.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "initialize", []byte(`{"n":1}`)))
	c.ends("start failed", false)
	eventually(t, "a warning", func() bool { return len(r.log.at(slog.LevelWarn)) > 0 })
	w := r.log.at(slog.LevelWarn)
	if len(w) != 1 || w[0]["msg"] != "upstream failed to start" || w[0]["cause"] != "exit status 3" || w[0]["stderr"] != "cannot find the license" {
		t.Errorf("warnings: %v", w)
	}
	c.returned()
	if st := r.host.Status()[0]; st.Failures != 1 || st.State != StateReady || fmt.Sprint(st.Stderr) != "[cannot find the license]" {
		t.Errorf("status %+v", st)
	}
}

func TestD48_CannotBeExecuted(t *testing.T) {
	for _, path := range []string{"", "no-such-program-anywhere", "/dev/null"} {
		r := newRig(t, process.Command{Path: path})
		c := r.attach("k")
		c.ends("start failed", false)
		c.returned()
		if w := r.log.at(slog.LevelWarn); len(w) != 1 || w[0]["err"] == nil {
			t.Errorf("path %q: warnings %v", path, w)
		}
	}
}

func TestD48_NoWorkingDirectory(t *testing.T) {
	for _, dir := range []string{"no-such-directory", "command.go"} {
		command := fakeCommand()
		command.Dir = dir
		r := newRig(t, command)
		c := r.attach("k")
		c.ends("start failed", false)
		c.returned()
		if w := r.log.at(slog.LevelWarn); len(w) != 1 || !strings.Contains(fmt.Sprint(w[0]["err"]), "working directory: ") {
			t.Errorf("directory %q: warnings %v", dir, w)
		}
	}
}

func TestDirIsTheWorkingDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "run.sh"), []byte("#!/bin/sh\nread x; pwd >&2; exec sleep 0\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, process.Command{Path: filepath.Join(dir, "run.sh"), Dir: dir})
	c := r.attach("k")
	c.send("initialize", 0)
	c.ends("start failed", false)
	c.returned()
	real, _ := filepath.EvalSymlinks(dir)
	if st := r.host.Status()[0]; !slices.Equal(st.Stderr, []string{dir}) && !slices.Equal(st.Stderr, []string{real}) {
		t.Errorf("ran in %q", st.Stderr)
	}
}

func TestD48_NeverAnswersInitialize(t *testing.T) {
	command := fakeCommand("mute")
	r := newRigOf(t, Upstream{Command: &command, StartTimeout: 100 * time.Millisecond})
	c := r.attach("k")
	c.send("initialize", 0)
	c.ends("start timeout", false)
	r.warned("upstream failed to start", 1)
}

func TestStartTimeoutEndsWithTheAnswer(t *testing.T) {
	t.Parallel()
	command := fakeCommand()
	for timeout := 250 * time.Millisecond; ; timeout *= 2 {
		c := newRigOf(t, Upstream{Command: &command, StartTimeout: timeout}).attach("k")
		c.send("initialize", 0)
		if _, err := c.Recv(); err != nil {
			continue // a slow machine
		}
		time.Sleep(timeout + 50*time.Millisecond)
		c.call("echo", 1)
		return
	}
}

// A server that answers initialize with no more than a refusal has not started,
// though it is the proxy that hangs up.
func TestD48_RefusesInitialize(t *testing.T) {
	for _, how := range []string{"refuses", "odd"} {
		r := newRig(t, fakeCommand(how))
		for range freeFailures + 1 {
			c := r.start("k")
			c.Close()
			c.returned()
		}
		w := r.log.at(slog.LevelWarn)
		if len(w) != freeFailures+1 || w[0]["msg"] != "upstream failed to start" || w[0]["cause"] != "initialize refused" {
			t.Errorf("%s: %v", how, w)
		}
		r.attach("k").ends("initialize refused", false) // it waits
	}
}

func TestD48_CrashLoop(t *testing.T) {
	t.Parallel()
	r := newRig(t, fakeCommand("dies"))
	tries, refused := 0, 0
	eventually(t, "a crash loop", func() bool {
		c := r.attach("k")
		c.ends("start failed", false)
		if err := c.returned(); strings.Contains(err.Error(), "waiting") {
			refused++
		} else if tries++; tries == 2 && refused > 0 {
			t.Error("the first restart was not at once")
		}
		return r.host.Status()[0].State == StateCrashLoop
	})
	if tries != crashLoop || refused == 0 {
		t.Errorf("%d starts, %d refusals", tries, refused)
	}
	w := r.log.at(slog.LevelWarn)
	if len(w) != crashLoop || w[crashLoop-1]["msg"] != "upstream is in a crash loop" {
		t.Errorf("warnings: %v", w)
	}
}

// A start counts for all clients if it fails whatever they send: before the command has read
// any of it. What a server may have died of is its client's alone.
func TestCommandFailures(t *testing.T) {
	for _, row := range []struct {
		name    string
		command process.Command
		shared  bool
		key     string
		counts  bool
	}{
		{"dies before it reads", fakeCommand("dies"), false, "k", runtime.GOOS == "linux"},
		{"dies of initialize", fakeCommand("modern-exits"), false, "k", false},
		{"refuses initialize", fakeCommand("refuses"), false, "k", false},
		{"refuses ours", fakeCommand("refuses"), true, "k", false},
		{"dies of ours", fakeCommand("modern-exits"), true, "k", true},
		{"dies of a trial's", fakeCommand("modern-exits"), false, "k.", true},
		{"is none", process.Command{Path: "no-such-program-anywhere"}, false, "k", true},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRigOf(t, Upstream{Command: &row.command, Shared: row.shared, Era: mcp.Legacy})
			c := r.attach(row.key)
			c.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "initialize", []byte(`{"n":1}`)))
			for {
				if _, err := c.Recv(); err != nil {
					break
				}
			}
			c.returned()
			r.host.restarts.mu.Lock()
			defer r.host.restarts.mu.Unlock()
			if failed := r.host.restarts.upstreams["fake"]; (failed.failures == 1) != row.counts {
				t.Errorf("failures of the command: %+v, want that it counts: %v", failed, row.counts)
			}
		})
	}
}

func TestD43_Banner(t *testing.T) {
	r := newRig(t, fakeCommand("banner"))
	c := r.start("k")
	c.call("echo", 1)
	const what = "upstream wrote a line that is not a message: only MCP messages belong on stdout; log to stderr"
	if w := r.log.at(slog.LevelWarn); len(w) != 1 || w[0]["msg"] != what {
		t.Errorf("warnings: %v", w)
	}
	if st := r.host.Status()[0]; st.Unusable != 3 || st.State != StateRunning {
		t.Errorf("status %+v", st)
	}
}

func TestD43_UnusableAnswerSettlesItsRequest(t *testing.T) {
	c := newRig(t, fakeCommand()).start("k")
	for _, method := range []string{"broken", "empty"} {
		id, other := c.send(method, 0), c.send("echo", 1)
		if m := c.wait(id); !strings.Contains(string(m.Error), `"reason":"invalid_response","upstream":"fake"`) {
			t.Errorf("got %s", m.Append(nil))
		}
		c.wait(other)
	}
}

// Unusable elements of an array (2025-03-26) take nothing from the others.
func TestD43_UnusableElements(t *testing.T) {
	r := newRig(t, fakeCommand())
	c := r.start("k")
	bad := c.send("never", 0)
	n, _ := bad.Int()
	good := c.send("array", int(n))
	m := c.recv()
	if len(m.Batch) != 2 || m.Batch[0].ID != bad || m.Batch[1].ID != good || m.Batch[1].Result == nil {
		t.Fatalf("got %s", m.Append(nil))
	}
	if failed := string(m.Batch[0].Error); !strings.Contains(failed, `"reason":"invalid_response","upstream":"fake"`) {
		t.Errorf("got %s", failed)
	}
	if st := r.host.Status()[0]; st.Unusable != 2 {
		t.Errorf("%d unusable messages, want 2", st.Unusable)
	}
}

func TestD43_OverlongLine(t *testing.T) {
	r := newRig(t, fakeCommand())
	r.host.Limits.Message = 1 << 20
	c := r.start("k")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if m := c.call("big", 32); !strings.Contains(string(m.Error), `"reason":"invalid_response"`) {
		t.Errorf("got %.100s", m.Append(nil))
	}
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 16<<20 {
		t.Errorf("a line of 32 MiB took %d MiB", allocated>>20)
	}
	c.call("echo", 1)
}

func TestD43_IDOfAnotherKind(t *testing.T) {
	r := newRig(t, fakeCommand())
	c := r.start("k")
	c.call("float", 0)
	c.call("string", 0)
	if st := r.host.Status()[0]; st.InFlight != 0 {
		t.Errorf("%d in flight", st.InFlight)
	}
}

// What is kept of stderr, and logged of it, at the most.
const (
	stderrLine  = 1 << 10
	stderrLines = 20
	stderrRate  = 20 // lines a second
	stderrBurst = 100
)

func TestStderrIsLogged(t *testing.T) {
	r := newRig(t, fakeCommand())
	c := r.start("k")
	c.call("stderr", 1000)
	c.call("stderr-long", 0)
	c.send("exit", 5)
	c.ends("exit status 5", true)
	tail := strings.Split(r.warned("upstream ended unexpectedly", 1)["stderr"].(string), "\n")
	if len(tail) != stderrLines || tail[stderrLines-1] != "next" || len(tail[stderrLines-2]) != stderrLine || tail[0] != "line 982" {
		t.Errorf("the last lines are %q", tail)
	}
	c.returned()
	logged, dropped := 0, 0.0
	for _, l := range r.log.at(slog.LevelInfo) {
		if n, ok := l["dropped"].(float64); ok {
			dropped += n
		} else {
			logged++
		}
	}
	if logged < stderrBurst || logged > stderrBurst+10*stderrRate || logged+int(dropped) != 1002 {
		t.Errorf("%d lines logged, %v dropped", logged, dropped)
	}
}

func TestErrorsAreClosed(t *testing.T) {
	r := newRig(t, fakeCommand("dies"))
	c := r.attach("k")
	if err := c.returned(); !errors.Is(err, jsonrpc.ErrClosed) {
		t.Error(err)
	}
}
