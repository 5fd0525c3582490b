//go:build man

package main

import (
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra/doc"
)

// With the tag man this program writes its own manual, a page for each command, to the
// directory MAN_DIR and does nothing else. What makes the pages is in no binary that is released.
func init() {
	dir := os.Getenv("MAN_DIR")
	if dir == "" {
		return
	}
	root := newRoot()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.DisableAutoGenTag = true
	if err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "mcp-proxy", Manual: "mcp-proxy", Date: released()}, dir); err != nil {
		panic(err)
	}
	os.Exit(0)
}

// released is the time of the commit, which SOURCE_DATE_EPOCH says: the same source makes the same pages.
func released() *time.Time {
	seconds, _ := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	t := time.Unix(seconds, 0).UTC()
	return &t
}
