//go:build unix && !linux

package process

import (
	"os/exec"
	"syscall"
)

// startGroup starts cmd in a group of its own. What Linux needs a thread for does
// not exist here: when this program is killed, its children see their stdin end.
func startGroup(cmd *exec.Cmd) (*group, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &group{pid: cmd.Process.Pid, pidfd: -1}, nil
}

func (g *group) release() {}

// await returns when the leader has exited. Here it has been reaped then, so a
// group of which nobody is left might in theory be another's when it is killed.
func (g *group) await(cmd *exec.Cmd) { cmd.Wait() }

// exited reports nothing that await does not tell: whoever asks has awaited it for a while.
func (g *group) exited() bool { return false }

// reap does nothing: await has done it.
func (g *group) reap(*exec.Cmd) {}
