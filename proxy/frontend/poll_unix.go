//go:build unix

package frontend

import (
	"os"

	"golang.org/x/sys/unix"
)

// pollFor is how long one look at stdout takes, in milliseconds: a break shows
// at once, and Close is noticed within that time.
const pollFor = 50

// pollBroken waits a moment and reports whether nobody reads f any more. A pipe
// then shows POLLERR, a socket or a terminal POLLHUP, without a write.
func pollBroken(f *os.File) (broken, ok bool) {
	raw, err := f.SyscallConn()
	if err != nil {
		return false, false
	}
	err = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(fds, pollFor)
		broken = err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0
	})
	return broken, err == nil
}
