package process

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// starter is the one thread from which all processes of this program start.
var starter thread

// A thread runs functions on one OS thread, which lives as long as any process that
// was started there: Pdeathsig is sent when the thread that started a child ends, not
// only when its process does. The zero value is ready.
type thread struct {
	mu    sync.Mutex
	alive int            // processes
	jobs  chan func()    // to run; closed by release after the last process
	wg    sync.WaitGroup // run
}

// startGroup starts cmd in a group of its own. After it succeeded, release must be
// called when the process is gone.
func startGroup(cmd *exec.Cmd) (*group, error) {
	g := &group{pidfd: -1}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, PidFD: &g.pidfd}
	jobs := starter.acquire()
	err := children.start(func() (int, error) {
		started := make(chan error, 1)
		jobs <- func() { started <- cmd.Start() }
		if err := <-started; err != nil {
			return 0, err
		}
		g.pid = cmd.Process.Pid
		return g.pid, nil
	})
	if err != nil {
		starter.release()
		return nil, err
	}
	return g, nil
}

// release lets the thread go, which the process needs no longer.
func (g *group) release() { starter.release() }

func (t *thread) acquire() chan<- func() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.alive++; t.alive == 1 {
		jobs := make(chan func())
		t.wg.Go(func() { run(jobs) })
		t.jobs = jobs
	}
	return t.jobs
}

// release ends the thread after the last process, and waits for it.
func (t *thread) release() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.alive--; t.alive == 0 {
		close(t.jobs)
		t.wg.Wait()
	}
}

// run is the goroutine whose thread starts processes. It does not unlock the
// thread, which therefore ends with it.
func run(jobs <-chan func()) {
	runtime.LockOSThread()
	for job := range jobs {
		job()
	}
}

// await returns when the leader has exited, but leaves it a zombie: until it is
// reaped, its process and group id are nobody else's. The wait goes through the
// runtime's poller, since a blocked thread for each idle process would be the
// largest part of its cost.
func (g *group) await(*exec.Cmd) {
	if g.pidfd >= 0 && syscall.SetNonblock(g.pidfd, true) == nil {
		f := os.NewFile(uintptr(g.pidfd), "pidfd")
		defer f.Close()
		if raw, err := f.SyscallConn(); err == nil && raw.Read(hasExited) == nil {
			return
		}
	}
	for unix.Waitid(unix.P_PID, g.pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// exited reports whether the leader has exited, as the kernel knows it: whoever awaits it
// may be late to hear of it.
func (g *group) exited() bool {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, g.pid, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
		if err != unix.EINTR {
			return err == unix.ECHILD || info.Signo != 0 // reaped, or a zombie
		}
	}
}

// reap reaps the leader, which has exited.
func (g *group) reap(cmd *exec.Cmd) { children.reap(g.pid, cmd.Wait) }

func hasExited(pidfd uintptr) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR { // a false "no" would wait for an event that has come
			return n > 0
		}
	}
}
