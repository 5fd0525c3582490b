package upstream

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/upstream/process"
)

// After kill -9 of the host its child ends too, though it ignores that its stdin
// ends. (A grandchild that does so is unreachable.)
func TestChildDiesWithAKilledHost(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fakeEnv+"=host")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	pid, _ := strconv.Atoi(strings.TrimSpace(line))
	if !alive(pid) {
		t.Errorf("no process %q", line)
	}
	cmd.Process.Kill()
	cmd.Wait()
	eventually(t, "the child is gone", func() bool { return !alive(pid) })
}

// The spawner's thread ends with its last process and not earlier: it would take
// the others along.
func TestSpawnerThreadLivesOn(t *testing.T) {
	r := newRig(t, fakeCommand())
	first := r.start("first")
	for i := range 20 {
		c := r.start(strconv.Itoa(i))
		c.Close()
		c.returned()
	}
	first.call("echo", 1)
	first.Close()
	first.returned()
	r.start("again").call("echo", 1)
}

func TestNoDescriptorIsLeft(t *testing.T) {
	r := newRig(t, fakeCommand())
	cycle := func(end func(*client)) {
		c := r.start("k")
		end(c)
		c.returned()
	}
	leave := func(c *client) { c.Close() }
	exit := func(c *client) { c.send("exit", 0) }
	cycle(leave)
	before := descriptors(t)
	for range 10 {
		cycle(leave)
	}
	cycle(exit)
	newRig(t, process.Command{Path: "/dev/null"}).attach("k").returned()
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors, before %d", after, before)
	}
}

func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
