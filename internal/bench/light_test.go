package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
)

// A proxy in the dark has no socket for operators, and another one has. Where it has one, it counts all calls.
func TestInDark(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("it reads /proc")
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	b, err := build(t.TempDir(), "", profiler{})
	if err != nil {
		t.Fatal(err)
	}
	lit := target{argv: b.serve(alone), serves: true, open: openHTTP}
	for _, tt := range []struct {
		target
		want bool
	}{{lit, true}, {b.inDark(lit), false}} {
		s, err := tt.begin(probe{})
		if err != nil {
			t.Fatal(err)
		}
		open, err := os.ReadFile("/proc/net/unix")
		if err != nil {
			t.Error(err)
		}
		if got := strings.Contains(string(open), fmt.Sprintf("-%d.sock", s.procs[0].cmd.Process.Pid)); got != tt.want {
			t.Errorf("with %q it has a socket: %t", tt.env, got)
		}
		if err := s.end(); err != nil {
			t.Error(err)
		}
	}
}
