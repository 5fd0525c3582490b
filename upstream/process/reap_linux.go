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

// children are the children of this program that are not reaped yet.
var children childTable

// A childTable tells our own children from orphans.
type childTable struct {
	mu   sync.Mutex // guards pids; held while a child is started or reaped
	pids map[int]bool
}

// start starts a child and registers it. Meanwhile reapOrphans waits, which would otherwise
// take the child for an orphan.
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

// reap calls wait for a child that has exited, and unregisters the child.
func (t *childTable) reap(pid int, wait func() error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = wait() // nil or an ExitError: ProcessState has the same
	delete(t.pids, pid)
}

// ReapOrphans reaps orphans until ctx is done, if this process is the first of a container;
// otherwise it returns at once. The program must start all its children with this package:
// the exit codes of others would be lost.
//
// It waits for each orphan by its id. A wait for any child could take the exit code of one
// of ours, and would return the same zombie again if that is kept on purpose.
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
		case <-died: // also sent for children that died before they became orphans
		case <-ctx.Done():
			return
		}
	}
}

// reapOrphans reaps zombies that are children of this process but not registered.
func (t *childTable) reapOrphans() {
	t.mu.Lock()
	defer t.mu.Unlock()
	entries, _ := os.ReadDir("/proc")
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

// isZombieOf reads /proc/PID/stat, which is "PID (NAME) STATE PARENT …". The name may have
// any characters.
func isZombieOf(pid, parent int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	return len(fields) > 1 && string(fields[0]) == "Z" && string(fields[1]) == strconv.Itoa(parent)
}
