//go:build !unix

package stdio

import (
	"io"
	"os"
)

// pollBroken cannot tell on this system whether anybody reads f. Only a write shows it.
func pollBroken(*os.File) (broken, ok bool) { return false, false }

// unblock cannot make f non-blocking on this system.
func unblock(*os.File) io.ReadWriteCloser { return nil }
