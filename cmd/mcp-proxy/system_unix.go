//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// ours reports whether a file belongs to this user.
func ours(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Getuid()
}

// clientLeft are the errors of a pipe or socket that nobody has open at its other end.
var clientLeft = []error{syscall.EPIPE, syscall.ECONNRESET}

// obeysEscapes reports whether a terminal obeys escape sequences.
func obeysEscapes(*os.File) bool { return true }
