package main

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"
)

// A fold leaves out lines about one thing that were there a moment ago, and counts them.
type fold struct {
	told []recentLine // the last ones, the newest last
	more int          // left out since
}

type recentLine struct {
	text string // but for its time
	at   time.Time
}

const (
	foldLines = 32          // that are remembered
	foldTime  = time.Minute // until a line is news again
)

// fresh reports whether a line is news, and returns a line about those that were not.
func (f *fold) fresh(at time.Time, text string) (before string, ok bool) {
	text = stamp.ReplaceAllString(text, "")
	for _, t := range f.told {
		if t.text == text && at.Sub(t.at) < foldTime {
			f.more++
			return "", false
		}
	}
	if len(f.told) == foldLines {
		f.told = f.told[1:]
	}
	f.told = append(f.told, recentLine{text, at})
	if f.more > 0 {
		before = fmt.Sprintf("(%s as before)", count(f.more, "line"))
	}
	f.more = 0
	return before, true
}

var (
	// stamp is the time that a line begins with.
	stamp = regexp.MustCompile(`^[\[(]?[0-9]{1,4}[-/:.][0-9][-/:.,0-9TZ+ ]*[\])]?\s*`)

	// escapes are sequences that terminals obey (ECMA-48: CSI, OSC, and those of two characters).
	escapes = regexp.MustCompile(`\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[ -Z\\^-~])`)
)

// withoutArt returns what a line says, without colours, frames and pictures; "" for nothing.
func withoutArt(line string) string {
	line = strings.ReplaceAll(escapes.ReplaceAllString(line, ""), "\r", " ") // progress that was drawn over itself
	bare := strings.TrimFunc(strings.Map(func(r rune) rune {
		if isArt(r) {
			return ' '
		}
		return r
	}, line), unicode.IsSpace)
	if !strings.ContainsFunc(bare, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
		return "" // a ruler, or a picture of signs
	}
	if bare == strings.TrimSpace(line) {
		return strings.TrimRightFunc(line, unicode.IsSpace) // as it is indented
	}
	return bare
}

// isArt tells of lines of boxes, blocks, geometric shapes that make pictures, and Braille.
func isArt(r rune) bool {
	return r >= 0x2500 && r <= 0x259f || r >= 0x2800 && r <= 0x28ff || r == 0x1fb00
}
