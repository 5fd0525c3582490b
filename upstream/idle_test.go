//go:build unix

package upstream

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/mcp"
)

// A shared server stays without streams, unless its upstream has an IdleStop.
func TestSharedServerStays(t *testing.T) {
	inSharedWorld(t, Upstream{}, func(w *sharedWorld) {
		w.start("a").leave()
		time.Sleep(24 * time.Hour)
		w.start("b").lives(w.server())
		if len(w.servers) != 1 {
			t.Errorf("%d sessions", len(w.servers))
		}
	})
}

// inIdleWorlds runs a test for shared servers of both eras that rest after 15 minutes.
func inIdleWorlds(t *testing.T, test func(w *sharedWorld, attach func(name string) *sharedClient)) {
	const idle = 15 * time.Minute
	t.Run("legacy", func(t *testing.T) {
		inSharedWorld(t, Upstream{IdleStop: idle}, func(w *sharedWorld) { test(w, w.start) })
	})
	t.Run("modern", func(t *testing.T) {
		world := &sharedWorld{era: mcp.Modern, discover: modernDiscover}
		inWorld(t, world, Upstream{Era: mcp.Modern, IdleStop: idle}, func(w *sharedWorld) { test(w, w.attach) })
	})
}

// call makes a call, which the server answers after d.
func (c *sharedClient) call(s *sharedServer, d time.Duration) {
	c.w.t.Helper()
	c.say(`{"id":"c","method":"tools/call"}`)
	got := s.heard()
	if len(got) != 1 {
		c.w.t.Fatalf("the server got %q", got)
	}
	time.Sleep(d)
	id, _, _ := strings.Cut(strings.TrimPrefix(got[0], `{"id":`), ",")
	s.say(fmt.Sprintf(`{"id":%s,"result":{}}`, id))
	c.hears(`{"id":"c","result":{}}`)
}

// A shared server stops IdleStop after its last use: a call of any client, or a client that came.
func TestSharedServerRests(t *testing.T) {
	inIdleWorlds(t, func(w *sharedWorld, attach func(string) *sharedClient) {
		a := attach("a")
		s := w.server()
		stopped := func(when string, want bool) {
			t.Helper()
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			if (s.end != nil) != want {
				t.Fatalf("%s: stopped %v", when, !want)
			}
		}
		a.leave()
		time.Sleep(14 * time.Minute)
		stopped("14 min after the first client came", false)

		b := attach("b")
		time.Sleep(30 * time.Minute)
		stopped("while a client is there", false)
		b.call(s, time.Hour)
		time.Sleep(10 * time.Minute)
		b.leave()
		time.Sleep(5*time.Minute - time.Second)
		stopped("before 15 min are over", false)
		time.Sleep(time.Second)
		stopped("15 min after the last call", true)
		if all := w.host.Status(); len(all) != 0 {
			t.Errorf("status %+v", all)
		}

		c := attach("c")
		s = w.server()
		c.call(s, 0)
		time.Sleep(15 * time.Minute)
		c.leave()
		stopped("after a client that was idle for 15 min", true)
		if lines := append(w.log.at(slog.LevelInfo), w.log.at(slog.LevelWarn)...); lines != nil {
			t.Errorf("log: %v", lines)
		}
		if len(w.servers) != 2 {
			t.Errorf("%d sessions", len(w.servers))
		}
	})
}

// A client that comes at the moment of the stop gets this server or the next one.
func TestSharedServerRestsAsAClientComes(t *testing.T) {
	for range 100 {
		inIdleWorlds(t, func(w *sharedWorld, attach func(string) *sharedClient) {
			attach("a").leave()
			time.Sleep(15 * time.Minute)
			attach("b").lives(w.server())
		})
	}
}

// A server of a resting upstream that is needed while it is being stopped starts when that is over.
func TestStartAfterStop(t *testing.T) {
	for _, rests := range []bool{true, false} {
		command := fakeCommand("ignores-eof")
		command.StopGrace = 500 * time.Millisecond
		up := Upstream{Command: &command}
		if rests {
			up.IdleStop = time.Hour
		}
		r := newRigOf(t, up)
		first := r.start("key")
		pid := r.host.Status()[0].PID
		other := r.start("other")
		first.Close()
		eventually(t, "a stop", func() bool { return r.host.Status()[0].State == StateStopping })
		r.start("third").Close() // nothing to do with it
		if !alive(pid) {
			t.Error("the first server is gone")
		}
		r.start("key")
		if alive(pid) == rests {
			t.Errorf("the first server is alive: %v, with rest: %v", !rests, rests)
		}
		other.call("echo", 1)
	}
}
