package link

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
)

// ListenUnix listens at a Unix socket. It replaces the socket of a dead process, but not one
// that accepts connections. A mode of zero leaves the mode to the umask. Close removes the
// socket, but not that of another process which has replaced it.
func ListenUnix(path string, mode fs.FileMode) (net.Listener, error) {
	l, err := listenUnix(path)
	if errors.Is(err, syscall.EADDRINUSE) {
		if err := removeStale(path); err != nil {
			return nil, err
		}
		l, err = listenUnix(path)
	}
	if err != nil {
		return nil, err
	}
	if mode == 0 {
		return l, nil
	}
	if err := os.Chmod(path, mode); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// A unixListener removes its own socket. That of package net removes what has its path.
type unixListener struct {
	*net.UnixListener
	path string
	made fs.FileInfo // of the socket; nil if it was removed at once
	once sync.Once
	err  error // of Close
}

func listenUnix(path string) (*unixListener, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	made, _ := os.Lstat(path)
	return &unixListener{UnixListener: l, path: path, made: made}, nil
}

// Close implements [net.Listener]. After the first time, another file may have the identity of the socket.
func (l *unixListener) Close() error {
	l.once.Do(func() {
		if now, err := os.Lstat(l.path); err == nil && os.SameFile(now, l.made) {
			_ = os.Remove(l.path)
		}
		l.err = l.UnixListener.Close()
	})
	return l.err
}

// removeStale removes the socket at path if it accepts no connection.
func removeStale(path string) error {
	if c, err := net.Dial("unix", path); err == nil {
		c.Close()
		return syscall.EADDRINUSE
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("exists and is not a socket")
	}
	return os.Remove(path)
}
