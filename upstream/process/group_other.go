//go:build unix && !linux

package process

import (
	"os/exec"
	"syscall"
)

// startGroup starts cmd in a group of its own. There is no Pdeathsig: when this program is
// killed, its children only see the end of stdin.
func startGroup(cmd *exec.Cmd) (*group, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &group{pid: cmd.Process.Pid, pidfd: -1}, nil
}

func (g *group) release() {}

// await reaps the leader when it has exited. An empty group's id may then be reused before
// the group is killed, in theory.
func (g *group) await(cmd *exec.Cmd) { cmd.Wait() }

// exited has nothing to add to await.
func (g *group) exited() bool { return false }

// reap does nothing: await has reaped the leader.
func (g *group) reap(*exec.Cmd) {}
