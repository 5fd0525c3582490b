package process

import (
	"os/exec"
	"testing"
	"time"
)

// TestExited: the kernel's word on an exit does not depend on who has heard of it, nor on
// whether the process is reaped.
func TestExited(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	g, err := startGroup(cmd)
	if err != nil {
		t.Skip(err)
	}
	defer g.release()
	if g.exited() {
		t.Error("it runs, and has exited")
	}
	g.kill()
	g.await(cmd)
	if !g.exited() {
		t.Error("it was killed, and has not exited")
	}
	g.reap(cmd)
	if !g.exited() {
		t.Error("it was reaped, and has not exited")
	}
}

// TestLateNews: nobody has heard of an exit for so long that a running process would count
// as one that has closed its pipes.
func TestLateNews(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	g, err := startGroup(cmd)
	if err != nil {
		t.Skip(err)
	}
	defer g.release()
	p := &process{cmd: cmd, group: g, exited: make(chan struct{})}
	soon := make(chan bool)
	go func() { soon <- p.exitsSoon() }()
	g.kill()
	defer g.reap(cmd)
	select {
	case exits := <-soon:
		if !exits {
			t.Error("it counts as running")
		}
	case <-time.After(10 * exitTime):
		t.Error("exitsSoon goes on waiting")
	}
}
