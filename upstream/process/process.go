package process

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

const (
	// lull is how long a pipe must be silent after the exit of the process to count as
	// ended, though a grandchild still holds it.
	lull = 250 * time.Millisecond

	// exitTime is how long the exit of a process may follow the end of its pipes: the
	// kernel closes them first. It is also how long the rest of its group may write after the
	// exit, since a grandchild may never fall silent.
	exitTime = time.Second

	// squeezedEnd and squeezedTerm are the steps of a forced stop, after the end of
	// stdin and after SIGTERM. Everything is gone within a second.
	squeezedEnd  = 600 * time.Millisecond
	squeezedTerm = 200 * time.Millisecond
)

// A process is one running server with its three pipes.
type process struct {
	// Static after construction.
	cmd            *exec.Cmd
	group          *group
	stdin          *stdin
	stdout, stderr *pipeReader
	grace          time.Duration
	started        time.Time

	drained  chan struct{} // closed when stdout was read to its end
	stopping chan struct{} // closed by stop: output may be lost
	exited   chan struct{} // closed by watch: the leader is a zombie or reaped
	gone     chan struct{} // closed by watch: the group is killed, the leader reaped

	mu     sync.Mutex // guards reaped, and the group id while a signal is sent
	reaped bool
}

// startProcess starts c. The caller runs watch, and reads stdout and stderr to their ends.
// stdinFailed is called if writing to stdin fails later.
func startProcess(c *Command, wg *sync.WaitGroup, stdinFailed func(error)) (*process, error) {
	cmd, err := c.cmd()
	if err != nil {
		return nil, err
	}
	p := &process{
		cmd: cmd, grace: c.stopGrace(),
		drained: make(chan struct{}), stopping: make(chan struct{}),
		exited: make(chan struct{}), gone: make(chan struct{}),
	}
	files, err := openPipes(cmd)
	if err != nil {
		return nil, err
	}
	p.group, err = startGroup(cmd)
	for _, f := range []any{cmd.Stdin, cmd.Stdout, cmd.Stderr} {
		f.(*os.File).Close() // the child's ends
	}
	if err != nil {
		closeAll(files[:])
		return nil, err
	}
	p.started = time.Now()
	p.stdin = newStdin(files[0], c.writeTimeout(), wg, stdinFailed)
	p.stdout = &pipeReader{File: files[1], exited: p.exited, gone: p.gone}
	p.stderr = &pipeReader{File: files[2], exited: p.exited, gone: p.gone}
	return p, nil
}

// openPipes gives cmd the child's ends of three pipes and returns ours. The pipes of os/exec
// are no use: Wait closes them with unread data.
func openPipes(cmd *exec.Cmd) (ours [3]*os.File, err error) {
	var theirs [3]*os.File
	for i := range ours {
		r, w, err := os.Pipe()
		if err != nil {
			closeAll(append(ours[:i:i], theirs[:i]...))
			return ours, err
		}
		ours[i], theirs[i] = r, w
	}
	ours[0], theirs[0] = theirs[0], ours[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = theirs[0], theirs[1], theirs[2]
	return ours, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// watch waits for the exit, and until stdout was read. Then it kills the rest of the group,
// and reaps the leader.
func (p *process) watch() {
	p.group.await(p.cmd)
	p.stdout.wake()
	p.stderr.wake()
	close(p.exited)

	limit := time.NewTimer(exitTime)
	defer limit.Stop()
	select {
	case <-p.drained:
	case <-p.stopping:
	case <-limit.C:
	}
	p.reap()
	close(p.gone)
}

func (p *process) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.group.kill()
	p.group.reap(p.cmd)
	p.group.release()
	p.reaped = true
}

// signal calls send, one of group's methods, unless the group is gone.
func (p *process) signal(send func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		send()
	}
}

// exitsSoon reports whether the process exits, too, after its pipes have ended. On a busy
// machine watch may notice the exit late, so after exitTime it asks the kernel.
func (p *process) exitsSoon() bool {
	select {
	case <-p.exited:
		return true
	case <-time.After(exitTime):
		return p.group.exited()
	}
}

// cause returns how the process ended. The process must be gone.
func (p *process) cause() jsonrpc.Cause {
	if how, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && how.Signaled() {
		return jsonrpc.SignalCause(how.Signal().String())
	}
	return jsonrpc.ExitCause(p.cmd.ProcessState.ExitCode())
}

// stop ends the process and its group in three steps, each within the grace: the end of
// stdin, which finish or abort has begun; SIGTERM; SIGKILL. It shortens the steps when ctx
// is done.
func (p *process) stop(ctx context.Context) {
	close(p.stopping)
	if !p.exits(ctx, squeezedEnd) {
		p.signal(p.group.terminate)
		p.stdin.abort() // ends a finish in progress
		if !p.exits(ctx, squeezedTerm) {
			p.signal(p.group.kill)
		}
	}
	<-p.gone
	p.stdin.abort()
}

// exits reports whether the process exits within the grace, or within squeezed after ctx
// is done.
func (p *process) exits(ctx context.Context, squeezed time.Duration) bool {
	end := time.Now().Add(p.grace)
	step := time.NewTimer(p.grace)
	defer step.Stop()
	select {
	case <-p.exited:
		return true
	case <-step.C:
		return false
	case <-ctx.Done():
	}
	step.Reset(min(time.Until(end), squeezed))
	select {
	case <-p.exited:
		return true
	case <-step.C:
		return false
	}
}

// A pipeReader reads the output of a process. After the exit of the process it ends with the
// pipe, or after a lull. When the group is gone, a grandchild that has left the group may still
// write: then it reads what is in the pipe, and ends when it has waited for more for a lull in all.
type pipeReader struct {
	*os.File
	exited, gone <-chan struct{}

	waited time.Duration // since the group is gone
	rest   int           // bytes that were read since then
}

// maxRest is more than a pipe holds.
const maxRest = 1 << 20

// wake makes a blocked Read check exited, which the caller must close next.
func (r *pipeReader) wake() { r.SetReadDeadline(time.Unix(1, 0)) }

// Read implements io.Reader. It needs two timeouts to call a lull the end: on a busy machine
// one deadline may pass before the data that are there were read.
func (r *pipeReader) Read(b []byte) (int, error) {
	for looks := 0; ; {
		select {
		case <-r.gone:
			return r.readRest(b)
		case <-r.exited:
			looks++
			r.SetReadDeadline(time.Now().Add(lull / 2))
		default:
		}
		n, err := r.File.Read(b)
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return n, err
		case looks == 2:
			return n, io.EOF
		}
		<-r.exited // the deadline was wake's if exited is still open
	}
}

// readRest is Read when the group is gone.
func (r *pipeReader) readRest(b []byte) (int, error) {
	if r.waited >= lull || r.rest >= maxRest {
		return 0, io.EOF
	}
	began := time.Now()
	r.SetReadDeadline(began.Add(lull - r.waited))
	n, err := r.File.Read(b)
	r.waited += time.Since(began)
	r.rest += n
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = io.EOF
	}
	return n, err
}
