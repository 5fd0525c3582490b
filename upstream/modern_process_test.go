//go:build unix

package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// modernRig returns a rig with a process of unknown era, and the file of what its
// processes have read.
func modernRig(t *testing.T, traits ...string) (*rig, string) {
	record := t.TempDir() + "/record"
	command := fakeCommand(traits...)
	command.Env = append(command.Env, recordEnv+"="+record)
	r := newRig(t, command)
	r.host.Bridge = &toldBridge{}
	return r, record
}

func count(t *testing.T, file, text string) int {
	t.Helper()
	all, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(all), text)
}

// pid returns the process that serves c.
func (c *client) pid() int { return pidOf(c.t, c.call("pid", 0)) }

// A process that is asked whether it speaks modern is kept if it does, else thrown
// away without a trace.
func TestProbeOfAProcess(t *testing.T) {
	for _, row := range []struct {
		trait  string
		modern bool
	}{
		{"modern", true}, {"dual", true}, {"renegotiates", true}, {"modern-slow", true},
		{"legacy-list", false}, {"legacy-022", false}, {"legacy-601", false}, {"legacy-other", false}, {"empty-result", false},
		{"dies-on-discover", false}, {"dies", false}, {"silent-on-discover", false},
	} {
		t.Run(row.trait, func(t *testing.T) {
			r, record := modernRig(t, row.trait, "grandchild")
			var all []*client
			for i := range 4 {
				all = append(all, r.attachIn(fmt.Sprint(i), mcp.Modern))
			}
			for _, c := range all {
				if row.modern {
					c.call("tools/call", 1)
				} else {
					c.ends("bridged from modern", false)
				}
			}
			if row.trait != "dies" && count(t, record, "server/discover") != 1 {
				t.Errorf("it was asked %d times", count(t, record, "server/discover"))
			}
			if w := r.log.at(slog.LevelWarn); len(w) > 0 {
				t.Errorf("warnings: %v", w)
			}
			if row.modern {
				return
			}
			if told := r.log.at(slog.LevelInfo); len(told) > 0 { // its stderr
				t.Errorf("told: %v", told)
			}
			eventually(t, "nothing is left", func() bool { return len(markedProcesses()) == 0 && len(r.host.Status()) == 0 })
		})
	}
}

// What cannot be started is no legacy server for that.
func TestProbeOfNothing(t *testing.T) {
	r := newRig(t, process.Command{Path: "/nonexistent/program"})
	for range freeFailures + 2 {
		c := r.attachIn("k", mcp.Modern)
		c.ends(jsonrpc.CauseStartFailed.String(), false)
		c.returned()
	}
	eventually(t, "it is told", func() bool { return len(r.log.at(slog.LevelWarn)) == freeFailures+1 })
	r.attach("k").ends(jsonrpc.CauseStartFailed.String(), false)
}

// All streams have one process, whatever they are called, and the same ids.
func TestModernStreamsShareAProcess(t *testing.T) {
	r, record := modernRig(t, "modern")
	a, b := r.attachIn("a", mcp.Modern), r.attachIn("b", mcp.Modern)
	pid := a.pid()
	if b.pid() != pid {
		t.Error("each has a process of its own")
	}
	listen, hang := a.send(mcp.MethodListen, 0), a.send("hang", 0)
	if m := a.recv(); m.Related != listen {
		t.Errorf("got %s, related to %q", m.Append(nil), m.Related)
	}
	b.call("change", 0)
	if m := a.recv(); m.Method != "notifications/tools/list_changed" || m.Related != listen {
		t.Errorf("got %s, related to %q", m.Append(nil), m.Related)
	}
	a.Close()
	a.returned()
	if b.pid() != pid {
		t.Error("the process ended with a stream")
	}
	if n := count(t, record, `"notifications/cancelled"`); n != 2 {
		t.Errorf("%d requests were cancelled, want %s and %s", n, listen, hang)
	}
	r.host.Stop(context.Background())
	b.ends(jsonrpc.CauseHostStopped.String(), true)
	if alive(pid) || count(t, record, "EOF") != 1 {
		t.Error("the process was not stopped as it wishes")
	}
}

// D07 to D10: however a process ends, each stream hears it once; one line of the log.
func TestD08_ModernProcessEnds(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		method string
		n      int
		cause  string
	}{
		{"kill", 0, "signal: killed"}, {"exit", 0, "exit status 0"}, {"grandchild-and-exit", 0, "exit status 4"},
		{"close-stdout", 0, "stdout closed"},
	} {
		t.Run(row.method, func(t *testing.T) {
			r, _ := modernRig(t, "modern")
			a, b := r.attachIn("a", mcp.Modern), r.attachIn("b", mcp.Modern)
			pid := a.pid()
			if row.method != "close-stdout" { // which it would hold open
				b.call("grandchild", 0)
			}
			b.call("tools/call", 0)
			a.send("hang", 0)
			a.send(row.method, row.n)
			a.ends(row.cause, true)
			b.ends(row.cause, true)
			if w := r.warned("upstream ended unexpectedly", 2); w["cause"] != row.cause {
				t.Errorf("warned of %v", w)
			}
			again := r.attachIn("a", mcp.Modern)
			if again.pid() == pid {
				t.Error("the same process")
			}
			eventually(t, "the process is gone", func() bool { return !alive(pid) })
		})
	}
}

func TestD12_ModernProcessStopsReading(t *testing.T) {
	t.Parallel()
	command := fakeCommand("modern")
	command.WriteTimeout, command.StopGrace = 200*time.Millisecond, 100*time.Millisecond
	r := newRig(t, command)
	a, b := r.attachIn("a", mcp.Modern), r.attachIn("b", mcp.Modern)
	b.call("tools/call", 0)
	a.call("stop-reading", 0)
	a.send("hang", 0)
	fill(a, 64<<20)
	a.ends("write timeout", true)
	b.ends("write timeout", true)
}

// D48: restarts of a process that is known to be modern are counted and told as any.
func TestD48_ModernCrashLoop(t *testing.T) {
	command := fakeCommand("dies")
	r := newRigOf(t, Upstream{Command: &command, Era: mcp.Modern})
	for range freeFailures + 1 {
		c := r.attachIn("k", mcp.Modern)
		c.send("tools/call", 0)
		c.ends(jsonrpc.CauseStartFailed.String(), false)
		c.returned()
	}
	eventually(t, "it is told", func() bool { return len(r.log.at(slog.LevelWarn)) == freeFailures+1 })
	st := r.host.Status()
	if len(st) != 1 || st[0].State != StateWaiting || st[0].Era != mcp.Modern || st[0].Failures != freeFailures+1 {
		t.Errorf("status %+v", st)
	}
	c := r.attachIn("other", mcp.Modern)
	c.ends(jsonrpc.CauseStartFailed.String(), false)
}

// A legacy client whose process refuses initialize, or dies of it, hears that there
// is another era; the process that said so serves it.
func TestLegacyClientOfAModernProcess(t *testing.T) {
	for _, trait := range []string{"modern", "modern-exits"} {
		t.Run(trait, func(t *testing.T) {
			r, record := modernRig(t, trait)
			c := r.attach("k")
			c.send("initialize", 0)
			c.ends("bridged from legacy", false)
			c.returned()
			again := r.attach("k")
			again.ends("bridged from legacy", false)
			r.attachIn("k", mcp.Modern).call("tools/call", 0)
			if n := count(t, record, "server/discover"); n != 1 {
				t.Errorf("%d processes were asked", n)
			}
			if w := r.log.at(slog.LevelWarn); len(w) > 0 {
				t.Errorf("warnings: %v", w)
			}
		})
	}
}

// A refusal of initialize does not count while the process cannot be started that would show the other era.
func TestRefusalWithoutAProbe(t *testing.T) {
	command := fakeCommand("modern")
	program := command.Path
	command.Path = filepath.Join(t.TempDir(), "server")
	put := func() {
		t.Helper()
		if err := os.Symlink(program, command.Path); err != nil {
			t.Fatal(err)
		}
	}
	put()
	r := newRig(t, command)
	r.host.Bridge = &toldBridge{}
	c := r.attach("k")
	eventually(t, "the process runs", func() bool { st := r.host.Status(); return len(st) == 1 && st[0].PID != 0 })
	if err := os.Remove(command.Path); err != nil {
		t.Fatal(err)
	}
	c.send("initialize", 0)
	c.ends(jsonrpc.CauseStartFailed.String(), false)
	end, _ := errors.AsType[*jsonrpc.ClosedError](c.returned())
	if want := "did not start: command not found"; end == nil || end.Says != want {
		t.Errorf("%+v, want %q", end, want)
	}
	put()
	c = r.attach("k")
	c.send("initialize", 0)
	c.ends("bridged from legacy", false)
}

// A legacy server pays nothing for the other era, unless it fails.
func TestLegacyClientIsTriedInItsOwnEra(t *testing.T) {
	r, record := modernRig(t, "dual")
	c := r.start("k")
	c.call("tools/call", 0)
	if count(t, record, "server/discover") != 0 {
		t.Error("it was asked for its era")
	}
	if st := r.host.Status(); len(st) != 1 || st[0].Era != mcp.Legacy || len(st[0].Speaks) != 1 {
		t.Errorf("status %+v", st)
	}
}
