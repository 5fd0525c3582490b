package process

import (
	"os"

	"golang.org/x/sys/unix"
)

// bytesIn returns how many bytes wait in the pipe f, also when nobody is there to read them
// any more; -1 if that is not known.
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
