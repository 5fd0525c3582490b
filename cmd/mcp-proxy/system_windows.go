package main

import (
	"io/fs"
	"os"

	"golang.org/x/sys/windows"
)

// ours is never asked where users have no numbers: there is no directory then.
func ours(fs.FileInfo) bool { return false }

// obeysEscapes makes a console obey escape sequences, and reports whether it does: those before
// Windows 10 do not.
func obeysEscapes(out *os.File) bool {
	var mode uint32
	h := windows.Handle(out.Fd())
	if windows.GetConsoleMode(h, &mode) != nil {
		return false
	}
	return windows.SetConsoleMode(h, mode|windows.ENABLE_VIRTUAL_TERMINAL_PROCESSING) == nil
}
