package config

import (
	"strconv"
	"strings"
)

// A Problem is one mistake in a configuration.
type Problem struct {
	Source string // the file, environment variable or flag; empty if there is none
	Key    string // the path of the key within the file, such as upstreams.docs.url
	Text   string // what is wrong
}

// Error is the problem on one line, "source: key: text" without the empty ones.
func (p Problem) Error() string {
	var parts []string
	for _, s := range []string{p.Source, p.Key, p.Text} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	return strings.Join(parts, ": ")
}

// Problems are all mistakes that were found, in the order of the file. An error
// of [Load] or [HostLink.Check] is always a non-empty Problems.
type Problems []Problem

// Error is the problems, a line each.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives each problem to errors.Is and errors.As.
func (ps Problems) Unwrap() []error {
	errs := make([]error, len(ps))
	for i, p := range ps {
		errs[i] = p
	}
	return errs
}

func quote(s string) string { return strconv.Quote(shorten(s)) }

func printable(s string) string {
	q := quote(s)
	return q[1 : len(q)-1]
}

// shorten keeps error lines readable.
func shorten(s string) string {
	const most = 64
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
