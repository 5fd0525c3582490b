package upstream

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/jsonrpc"
)

// runHostRole is a process that hosts an upstream which ignores everything, and
// prints its pid.
func runHostRole() {
	near, far := jsonrpc.Pipe()
	h := &Host{Upstreams: map[string]Command{"fake": fakeCommand("ignores-eof", "ignores-term")}}
	go h.Attach(context.Background(), "fake", "k", far)
	near.Send(jsonrpc.NewRequest(jsonrpc.IntID(1), "pid", []byte(`{"n":1}`)))
	m, err := near.Recv()
	if err != nil {
		os.Exit(1)
	}
	fmt.Println(string(m.Result))
	select {}
}

// After kill -9 of the host its child ends too, though it ignores that its stdin
// ends. (A grandchild that does so is out of reach.)
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
