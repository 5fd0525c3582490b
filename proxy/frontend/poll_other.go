//go:build !unix

package frontend

import (
	"io"
	"os"
)

// pollBroken cannot tell here whether anybody reads f: only a write shows it.
func pollBroken(*os.File) (broken, ok bool) { return false, false }

// pollable returns f if closing it unblocks its reads and writes, else nil.
func pollable(f *os.File) io.ReadWriteCloser {
	if canBeInterrupted(f) {
		return f
	}
	return nil
}
