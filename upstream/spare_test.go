//go:build unix

package upstream

import (
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/observe"
	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// inSpares returns a rig with so many spares, and a function that returns their process ids once
// there are n, none of which is among those.
func inSpares(t *testing.T, n int, traits ...string) (r *rig, spares func(n int, not ...int) []int) {
	command := fakeCommand(traits...)
	r = newRigOf(t, Upstream{Command: &command, Spare: n})
	r.host.StartSpares()
	return r, func(n int, not ...int) (pids []int) {
		t.Helper()
		eventually(t, "spares", func() bool {
			pids = nil
			for _, s := range r.host.Spares() {
				pids = append(pids, s.PID)
				for _, old := range not {
					if s.PID == old {
						return false
					}
				}
			}
			return len(pids) == n
		})
		return pids
	}
}

func (r *rig) quiet() {
	r.t.Helper()
	if lines := append(r.log.at(slog.LevelInfo), r.log.at(slog.LevelWarn)...); lines != nil {
		r.t.Errorf("log: %v", lines)
	}
}

func serverOf(c *client, r *rig, key string) int {
	c.t.Helper()
	for _, st := range r.host.Status() {
		if st.Key == key {
			return st.PID
		}
	}
	c.t.Fatalf("no server of %s", key)
	return 0
}

func TestSpare(t *testing.T) {
	r, spares := inSpares(t, 2)
	if all := r.host.Status(); len(all) != 0 {
		t.Errorf("status %+v", all)
	}
	two := spares(2)
	a := r.start("a")
	if pid := serverOf(a, r, "a"); pid != two[0] {
		t.Errorf("a has %d, the oldest spare is %d", pid, two[0])
	}
	spares(2, two[0])
	b := r.start("b")
	if pid := serverOf(b, r, "b"); pid != two[1] {
		t.Errorf("b has %d, the oldest spare is %d", pid, two[1])
	}
	a.call("echo", 1)
	b.call("echo", 1)
	a.send("kill", 0) // ends as any other server
	a.ends("signal: killed", true)
	r.warned("upstream ended unexpectedly", 1)
}

// No spares run before the start and after the end.
func TestSparesEnd(t *testing.T) {
	command := fakeCommand()
	r := newRigOf(t, Upstream{Command: &command, Spare: 1})
	r.start("a")
	if all := r.host.Spares(); all != nil {
		t.Errorf("spares %v", all)
	}
	r.host.StartSpares()
	eventually(t, "a spare", func() bool { return len(r.host.Spares()) == 1 })
	pid := r.host.Spares()[0].PID
	r.host.mu.Lock()
	r.host.spares.stop() // as Stop, which would wait for a
	r.host.mu.Unlock()
	eventually(t, "its end", func() bool { return !alive(pid) })
	if all := r.host.Spares(); all != nil {
		t.Errorf("spares %v", all)
	}
	r.quiet()
}

// isReady reports whether a process is a spare that has not exited.
func isReady(r *rig, upstream string, pid int) bool {
	sp := &r.host.spares
	sp.mu.Lock()
	defer sp.mu.Unlock()
	return slices.ContainsFunc(sp.pools[upstream].ready, func(s *spare) bool { return s.PID() == pid && !s.HasExited() })
}

// A spare that dies is replaced, and that is no failure. A client that comes just then gets a
// server.
func TestSpareDies(t *testing.T) {
	var told atomic.Int32
	r, spares := inSpares(t, 1)
	r.host.Hooks = observe.Hooks{Happened: func(observe.Event) { told.Add(1) }, UpstreamEnded: func(observe.Upstream, observe.End) { told.Add(1) }}
	first := spares(1)[0]
	syscall.Kill(first, syscall.SIGKILL)
	for isReady(r, "fake", first) { // until the kernel says that all threads are gone; the host may not know it yet
		runtime.Gosched()
	}
	c := r.start("a")
	if pid := serverOf(c, r, "a"); pid == first {
		t.Error("the client has a dead server")
	}
	spares(1, first, serverOf(c, r, "a"))
	if st := r.host.Status(); len(st) != 1 || st[0].Failures != 0 || st[0].Cause != "" {
		t.Errorf("status %+v", st)
	}
	if n := told.Load(); n != 0 {
		t.Errorf("%d hooks", n)
	}
	r.quiet()
}

// A command that always exits is started with pauses.
func TestSpareThatExits(t *testing.T) {
	r, _ := inSpares(t, 1, "dies")
	exits := func() (n int) {
		for _, l := range r.log.at(slog.LevelDebug) {
			if l["msg"] == "spare process exited" {
				n++
			}
		}
		return n
	}
	eventually(t, "an exit", func() bool { return exits() > 0 })
	time.Sleep(200 * time.Millisecond) // the first pause is longer
	if n := exits(); n != 1 {
		t.Errorf("%d exits", n)
	}
	eventually(t, "another start", func() bool { return exits() > 1 })
	if st := r.host.Status(); len(st) != 0 {
		t.Errorf("status %+v", st)
	}
	r.quiet()
}

// A reload replaces the spares of commands that it changes, and no others.
func TestSparesFollow(t *testing.T) {
	r, spares := inSpares(t, 1)
	old := spares(1)[0]
	up := r.host.Upstreams["fake"]
	r.host.Replace(map[string]Upstream{"fake": up, "other": {}}, nil)
	if now := spares(1)[0]; now != old {
		t.Error("another spare of the same command")
	}
	command := *up.Command
	changed := up
	changed.Command = &command
	r.host.Replace(map[string]Upstream{"fake": changed}, []string{"fake"})
	second := spares(1, old)[0]
	if p := r.host.spares.take("fake", up.Command); p != nil {
		t.Error("a spare for the old command")
	}
	eventually(t, "the end of the old one", func() bool { return !alive(old) })
	changed.Spare = 3
	r.host.Replace(map[string]Upstream{"fake": changed}, nil)
	spares(3)
	changed.Spare = 0
	r.host.Replace(map[string]Upstream{"fake": changed}, nil)
	spares(0)
	eventually(t, "the end of the second one", func() bool { return !alive(second) })
	r.host.Replace(map[string]Upstream{}, []string{"fake"})
	r.quiet()
}

// A command that cannot be run is no failure before it is needed.
func TestSpareOfNoCommand(t *testing.T) {
	r := newRigOf(t, Upstream{Command: &process.Command{Path: "/does/not/exist"}, Spare: 1})
	r.host.StartSpares()
	eventually(t, "an attempt", func() bool { return len(r.log.at(slog.LevelDebug)) > 0 })
	r.quiet()
}

// Many clients at once: each has a server of its own.
func TestRaceSpares(t *testing.T) {
	r, _ := inSpares(t, 3)
	var all sync.WaitGroup
	for i := range 16 {
		key := string(rune('a' + i))
		all.Go(func() {
			c := r.start(key)
			c.call("echo", 1)
		})
	}
	all.Wait()
	seen := make(map[int]bool)
	for _, st := range r.host.Status() {
		if seen[st.PID] {
			t.Errorf("two clients of %d", st.PID)
		}
		seen[st.PID] = true
	}
	if len(seen) != 16 {
		t.Errorf("%d servers", len(seen))
	}
}
