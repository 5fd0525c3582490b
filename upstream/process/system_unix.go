//go:build unix

package process

import (
	"os"
	"syscall"
)

var inheritedHere []string

func sameName(a, b string) bool { return a == b }

// tryWriter returns a function that writes as much to the pipe f as it takes without
// blocking. It must not be called concurrently.
func tryWriter(f *os.File) func([]byte) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return func([]byte) (int, error) { return 0, err }
	}
	var (
		text []byte
		n    int
		werr error
	)
	once := func(fd uintptr) bool {
		for {
			if n, werr = syscall.Write(int(fd), text); werr != syscall.EINTR {
				return true
			}
		}
	}
	return func(p []byte) (int, error) {
		text = p
		err := raw.Write(once)
		text = nil
		switch {
		case err != nil:
			return 0, err
		case werr == syscall.EAGAIN:
			return 0, nil
		case werr != nil:
			return 0, os.NewSyscallError("write", werr)
		}
		return n, nil
	}
}

// A group is a process group with one child of ours as its leader.
type group struct {
	pid   int
	pidfd int // on Linux, a descriptor that is readable after the exit; -1 for none
}

// terminate asks every process of the group to end.
func (g *group) terminate() { syscall.Kill(-g.pid, syscall.SIGTERM) }

// kill ends every process of the group.
func (g *group) kill() { syscall.Kill(-g.pid, syscall.SIGKILL) }
