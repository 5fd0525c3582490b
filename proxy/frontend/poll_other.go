//go:build !unix

package frontend

import (
	"io"
	"os"
)

// pollBroken cannot tell here whether anybody reads f: only a write shows it.
func pollBroken(*os.File) (broken, ok bool) { return false, false }

// unblock cannot make f non-blocking here.
func unblock(*os.File) io.ReadWriteCloser { return nil }
