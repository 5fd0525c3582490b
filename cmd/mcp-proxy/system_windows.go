package main

import (
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// ours is never called: without user ids there is no directory for sockets.
func ours(fs.FileInfo) bool { return false }

// clientLeft are the errors of a pipe that nobody has open at its other end.
var clientLeft = []error{windows.ERROR_BROKEN_PIPE, windows.ERROR_NO_DATA}

// obeysEscapes makes a console obey escape sequences, and reports whether it can: not before
// Windows 10.
func obeysEscapes(out *os.File) bool {
	var mode uint32
	h := windows.Handle(out.Fd())
	if windows.GetConsoleMode(h, &mode) != nil {
		return false
	}
	return windows.SetConsoleMode(h, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
