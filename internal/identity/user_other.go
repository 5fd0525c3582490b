//go:build !linux

package identity

import "net"

// peerOf knows no users on this system.
func peerOf(*net.UnixConn) (uid uint32, ok bool, err error) { return 0, false, nil }
