//go:build unix

package stdio

import (
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pollFor is the duration of one poll of stdout, in milliseconds. A break is seen at once, a Close
// within that time.
const pollFor = 50

// pollBroken waits a moment and reports whether the reader of f has closed it. Without a write, a
// pipe then shows POLLERR, a socket or a terminal POLLHUP.
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

// unblock returns f as a file whose reads and writes Close unblocks, nil if f is neither a pipe nor
// a socket. O_NONBLOCK belongs to the open file and not to the descriptor, so it affects everybody
// who shares it. Close clears it.
func unblock(f *os.File) io.ReadWriteCloser {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	dup := -1
	raw.Control(func(fd uintptr) {
		var info unix.Stat_t
		if unix.Fstat(int(fd), &info) != nil || info.Mode&unix.S_IFMT != unix.S_IFIFO && info.Mode&unix.S_IFMT != unix.S_IFSOCK {
			return
		}
		if dup, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err != nil {
			dup = -1
			return
		}
		unix.SetNonblock(dup, true)
	})
	if dup < 0 {
		return nil
	}
	p := &nonblockingFile{File: os.NewFile(uintptr(dup), f.Name()), f: f}
	if p.SetDeadline(time.Time{}) != nil {
		p.File.Close()
		p.restore()
		return nil
	}
	return p
}

// A nonblockingFile is a second descriptor of f in non-blocking mode.
type nonblockingFile struct {
	*os.File
	f *os.File
}

// Close closes both descriptors. It waits for the reads and writes that it unblocked, so that none
// of them finds the file in blocking mode.
func (u *nonblockingFile) Close() error {
	u.File.Close()
	u.restore()
	return u.f.Close()
}

func (u *nonblockingFile) restore() {
	if raw, err := u.f.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.SetNonblock(int(fd), false) })
	}
}
