//go:build man

package main

import (
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra/doc"
)

// With the build tag man, the program only writes its manual, a page for each command, to the
// directory MAN_DIR. Released binaries do not have the generator.
func init() {
	dir := os.Getenv("MAN_DIR")
	if dir == "" {
		return
	}
	root := newRoot()
	root.DisableAutoGenTag = true
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "mcp-proxy", Manual: "mcp-proxy", Date: released()}, dir); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// released returns the time in SOURCE_DATE_EPOCH, that of the commit: the same source makes the same pages.
func released() *time.Time {
	seconds, _ := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	t := time.Unix(seconds, 0).UTC()
	return &t
}
