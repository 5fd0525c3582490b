package process

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// children are the processes that were started here and are not reaped yet: those of
// the whole program, as zombies are.
var children childTable

// A childTable tells our own children from orphans.
type childTable struct {
	mu   sync.Mutex // guards pids; held from a start until it is in there, and while one is reaped
	pids map[int]bool
}

// start starts a process of ours and returns its id. In between nobody looks for
// orphans, which it could be taken for.
func (t *childTable) start(start func() (pid int, err error)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	pid, err := start()
	if err != nil {
		return err
	}
	if t.pids == nil {
		t.pids = make(map[int]bool)
	}
	t.pids[pid] = true
	return nil
}

// reap waits for a process of ours, which has exited.
func (t *childTable) reap(pid int, wait func() error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = wait() // nil or an ExitError: the process's state tells
	delete(t.pids, pid)
}

// ReapOrphans does what the first process of a container has to, until ctx ends: it
// reaps the processes that it inherits when their parents die. In any other process it
// returns at once. It is for programs all of whose own children are started here: the exit
// codes of others would be lost.
//
// It waits for the orphans one by one. A wait for any child could take the exit code
// of one of ours, and would return for ever one that is kept a zombie on purpose.
func ReapOrphans(ctx context.Context) {
	if os.Getpid() != 1 {
		return
	}
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	defer signal.Stop(died)
	for {
		children.reapOrphans()
		select {
		case <-died: // also of those that died before they were orphans
		case <-ctx.Done():
			return
		}
	}
}

// reapOrphans reaps the zombies that are children of this process and not ours.
func (t *childTable) reapOrphans() {
	t.mu.Lock()
	defer t.mu.Unlock()
	entries, _ := os.ReadDir("/proc") // those that could be read
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || t.pids[pid] || !isZombieOf(pid, os.Getpid()) {
			continue
		}
		for {
			if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != unix.EINTR {
				break
			}
		}
	}
}

// isZombieOf reads /proc/PID/stat, which is "PID (NAME) STATE PARENT …". A name can
// have anything in it.
func isZombieOf(pid, parent int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(fields) > 1 && string(fields[0]) == "Z" && string(fields[1]) == strconv.Itoa(parent)
}
