package process

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// starter starts all processes of this program.
var starter thread

// A thread runs functions on one OS thread, which lives as long as any process that was
// started there: Pdeathsig is sent when the thread that started a child ends, not only when
// its process does. The zero value is ready.
type thread struct {
	mu    sync.Mutex
	alive int            // processes
	jobs  chan func()    // for run; closed by release after the last process
	wg    sync.WaitGroup // run
}

// startGroup starts cmd in a group of its own. If it succeeds, the caller must call release
// when the process is gone.
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

// release ends the process's use of the thread.
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

// await returns when the leader has exited, but leaves it a zombie, so that its process and
// group id are not reused. It waits through the runtime's poller: a blocked thread would be
// the largest part of the cost of an idle process.
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

// exited asks the kernel whether the leader has exited: await may return late.
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
		if err != unix.EINTR { // after a false "no" the poller would wait for an event that has passed
			return n > 0
		}
	}
}
