package config

import (
	"strconv"
	"strings"
)

// A Problem is one mistake in a configuration.
type Problem struct {
	Source string `json:"source,omitzero"` // the file, environment variable or flag; empty if there is none
	Key    string `json:"key,omitzero"`    // the path of the key within the file, such as upstreams.docs.url
	Text   string `json:"text"`            // what is wrong
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

// Nearest returns the one of known that word is most likely a misspelling of: at most
// two letters differ, or word is short for it. It is "" if there is none. Of several that
// are equally near it is the first in the alphabet.
func Nearest(word string, known []string) string {
	best, least := "", min(2, len(word)/2)+1
	for _, k := range known {
		d := distance(strings.ToLower(word), strings.ToLower(k))
		if isShort(word, k) {
			d = min(d, 1)
		}
		if d < least || d == least && best != "" && k < best {
			best, least = k, d
		}
	}
	return best
}

// isShort reports whether word is k without some of its letters, as cmd is command.
func isShort(word, k string) bool {
	if len(word) < 3 || word[0] != k[0] {
		return false
	}
	for i := 0; i < len(k) && word != ""; i++ {
		if k[i] == word[0] {
			word = word[1:]
		}
	}
	return word == ""
}

// distance counts the letters to add, to remove or to change until a is b.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // from the part of a so far to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// DidYouMean completes an error line about an unknown word. It is "" if no known word is
// near.
func DidYouMean(word string, known []string) string {
	if near := Nearest(word, known); near != "" {
		return "; did you mean " + near + "?"
	}
	return ""
}
