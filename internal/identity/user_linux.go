package identity

import (
	"net"
	"syscall"
)

// peerOf returns the id of the user who opened c, at that time.
func peerOf(c *net.UnixConn) (uid uint32, ok bool, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	var cred *syscall.Ucred
	failed := raw.Control(func(fd uintptr) {
		cred, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if failed != nil {
		return 0, false, failed
	}
	if err != nil {
		return 0, false, err
	}
	return cred.Uid, true, nil
}
