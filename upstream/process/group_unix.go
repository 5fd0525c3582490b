//go:build unix

package process

import "syscall"

// A group is the process group of one child, which leads it.
type group struct {
	pid   int
	pidfd int // Linux: a descriptor that is readable after the exit; -1 for none
}

// terminate asks every process of the group to end.
func (g *group) terminate() { syscall.Kill(-g.pid, syscall.SIGTERM) }

// kill ends every process of the group.
func (g *group) kill() { syscall.Kill(-g.pid, syscall.SIGKILL) }
