//go:build !linux

package process

import "os"

// bytesIn returns -1: the number of unread bytes is unknown.
func bytesIn(*os.File) int { return -1 }
