package process

import (
	"os"

	"golang.org/x/sys/unix"
)

// bytesIn returns the number of unread bytes in the pipe f, also after its reader has
// exited; -1 if that is unknown.
func bytesIn(f *os.File) int {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1
	}
	n := -1
	err = raw.Control(func(fd uintptr) {
		if waiting, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			n = waiting
		}
	})
	if err != nil {
		return -1
	}
	return n
}
