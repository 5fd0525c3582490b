package upstream

import (
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// A spawner starts processes from one OS thread that lives as long as any of
// them: Pdeathsig is sent when the thread that started a child ends, not only
// when its process does. The zero value is ready.
type spawner struct {
	mu    sync.Mutex
	alive int
	jobs  chan func() // to run; closed by release after the last process
}

// start starts cmd in a group of its own. After it succeeded, release must be
// called when the process is gone. The thread's goroutine is counted in wg.
func (s *spawner) start(cmd *exec.Cmd, wg *sync.WaitGroup) (*group, error) {
	g := &group{pidfd: -1}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, PidFD: &g.pidfd}
	jobs := s.acquire(wg)
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
		s.release(g)
		return nil, err
	}
	return g, nil
}

func (s *spawner) acquire(wg *sync.WaitGroup) chan<- func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alive++; s.alive == 1 {
		jobs := make(chan func())
		wg.Go(func() { run(jobs) })
		s.jobs = jobs
	}
	return s.jobs
}

func (s *spawner) release(*group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alive--; s.alive == 0 {
		close(s.jobs)
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
