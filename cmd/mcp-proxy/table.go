package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Rows are a table with columns as wide as their widest cell.
type rows struct {
	head  string // with tabs between the columns
	lines []string
	more  int // lines left out
}

func (r *rows) add(cells ...any) {
	texts := make([]string, strings.Count(r.head, "\t")+1) // all of them: tabwriter aligns a shorter line apart from the others
	for i, c := range cells {
		texts[i] = oneLine(fmt.Sprint(c), maxCell)
	}
	r.lines = append(r.lines, strings.Join(texts, "\t"))
}

// maxCell bounds a cell, in characters: servers and clients choose some of the texts.
const maxCell = 100

// atMost keeps the first n lines and counts the others.
func (r *rows) atMost(n int) {
	if more := len(r.lines) - max(n, 0); more > 0 {
		r.lines, r.more = r.lines[:len(r.lines)-more], r.more+more
	}
}

// write writes the table, or nothing if it has no lines. Lines are cut to width; 0 means no limit.
func (r *rows) write(to io.Writer, width int) {
	if len(r.lines) == 0 && r.more == 0 {
		return
	}
	var all bytes.Buffer
	w := tabwriter.NewWriter(&all, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, r.head)
	for _, line := range r.lines {
		fmt.Fprintln(w, line)
	}
	_ = w.Flush() // memory does not fail
	for line := range strings.Lines(all.String()) {
		fmt.Fprintln(to, oneLine(line, width))
	}
	if r.more > 0 {
		fmt.Fprintln(to, oneLine(fmt.Sprintf("and %d more", r.more), width))
	}
}

// latency formats milliseconds for people; "" for zero.
func latency(ms float64) string {
	switch {
	case ms <= 0:
		return ""
	case ms < 10:
		return fmt.Sprintf("%.1fms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0fms", ms)
	}
	return fmt.Sprintf("%.1fs", ms/1000)
}

// size formats a number of bytes for people.
func size(bytes int) string {
	switch {
	case bytes < 1<<10:
		return fmt.Sprintf("%d B", bytes)
	case bytes < 1<<20:
		return fmt.Sprintf("%d KiB", bytes>>10)
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

func withMore(lines []string, leftOut int) []string {
	if leftOut > 0 {
		lines = append(lines, fmt.Sprint("and ", leftOut, " more"))
	}
	return lines
}

// count returns a number and a noun: "1 call", "2 calls".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprint(n, " ", what, "s")
}

// roughly formats a duration with as many digits as people read.
func roughly(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return "<1ms"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}
