//go:build !windows

package main

import "os"

// obeysEscapes reports whether a terminal obeys escape sequences.
func obeysEscapes(*os.File) bool { return true }
