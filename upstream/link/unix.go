package link

import (
	"context"
	"errors"
	"fmt"
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
			return nil, &net.OpError{Op: "listen", Net: "unix", Addr: &net.UnixAddr{Name: path, Net: "unix"}, Err: err}
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
	at := &net.UnixAddr{Name: path, Net: "unix"}
	if len(path) > maxSocketPath {
		return nil, &net.OpError{Op: "listen", Net: "unix", Addr: at, Err: errLongPath}
	}
	l, err := net.ListenUnix("unix", at)
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	made, _ := os.Lstat(path)
	return &unixListener{UnixListener: l, path: path, made: made}, nil
}

// maxSocketPath is how many bytes the path of a Unix socket may have. For a longer one the system says only
// "invalid argument".
const maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1

var errLongPath = fmt.Errorf("the path of a socket may have %d bytes", maxSocketPath)

func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	if len(path) > maxSocketPath {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: errLongPath}
	}
	return new(net.Dialer).DialContext(ctx, "unix", path)
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
