package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// A console writes lines for people: a time, the name of an upstream or a client, and a text.
type console struct {
	// Static.
	obey  func(line string) // writes text that is printable except for colours
	wide  func() int        // columns of the terminal; 0 for none
	color bool
	live  bool // it is a terminal

	mu    sync.Mutex // held while a line is written; guards the fields below
	named int        // columns of the widest name so far
	folds map[string]*fold
}

// newConsole returns the console on an output. It has colours if that is a terminal that supports them,
// and NO_COLOR is not set (no-color.org).
func newConsole(out *output) *console {
	c := &console{obey: out.command, wide: out.width, folds: make(map[string]*fold), live: out.isTerminal()}
	c.color = c.live && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && obeysEscapes(out.file)
	return c
}

func (c *console) in(s style, text string) string {
	if !c.color {
		s = plain
	}
	return paint(s, text)
}

const (
	leastNamed = 6  // minimum columns for names
	mostNamed  = 16 // maximum columns for names; a longer one moves its own line only
	timed      = 60 // columns of a terminal from which on lines have a time
)

// know widens the column of names.
func (c *console) know(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range names {
		c.named = max(c.named, min(utf8.RuneCountInString(n), mostNamed))
	}
}

// say writes a line about an upstream, a link or a client.
func (c *console) say(at time.Time, name string, s style, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sayLocked(at, name, s, text)
}

// state writes a line about a change of state: the state in one word, and a text.
func (c *console) state(name string, s style, state, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lineLocked(time.Now(), name, s, state, plain, text)
}

func (c *console) sayLocked(at time.Time, name string, s style, text string) {
	c.lineLocked(at, name, plain, "", s, text)
}

// lineLocked writes a line: a time, a name, a state unless it is "", and text, which is wrapped.
func (c *console) lineLocked(at time.Time, name string, ss style, state string, s style, text string) {
	var b strings.Builder
	wide, indent := c.wide(), 0
	if wide == 0 || wide >= timed {
		clock := at.Local().Format(time.TimeOnly) + "  "
		b.WriteString(c.in(dim, clock))
		indent = len(clock)
	}
	name, text = bare(name), bare(text)
	name += strings.Repeat(" ", max(max(c.named, leastNamed)-utf8.RuneCountInString(name), 0)) + "  "
	b.WriteString(c.in(nameStyle(s), name))
	indent += utf8.RuneCountInString(name)
	if state != "" {
		b.WriteString(c.in(ss, state) + "  ")
		indent += utf8.RuneCountInString(state) + 2
	}
	for i, line := range wrap(text, wide-indent) {
		if i > 0 {
			b.WriteString(strings.Repeat(" ", indent))
		}
		b.WriteString(c.in(s, line))
		b.WriteByte('\n')
	}
	c.obey(b.String())
}

// bare makes a text printable, without escape sequences: servers write colours.
func bare(text string) string { return printable(escapes.ReplaceAllString(text, "")) }

// write writes text that is printable except for colours.
func (c *console) write(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.obey(text)
}

// nameStyle returns the style of a name before text of a style.
func nameStyle(s style) style {
	if s == dim {
		return dim
	}
	return bold
}

// leastText is the minimum of columns for wrapping: below it the terminal wraps as well.
const leastText = 24

// wrap breaks text between words into lines of at most wide columns. A longer word has a line of its own.
func wrap(text string, wide int) (lines []string) {
	for part := range strings.SplitSeq(text, "\n") {
		line, n := "", 0
		for i, word := range strings.Split(part, " ") {
			w := utf8.RuneCountInString(word)
			if i > 0 && wide >= leastText && n+1+w > wide {
				lines, line, n = append(lines, strings.TrimRight(line, " ")), word, w
				continue
			}
			if i > 0 {
				line, n = line+" ", n+1
			}
			line, n = line+word, n+w
		}
		lines = append(lines, line)
	}
	return lines
}

// A fold suppresses repeated lines about one upstream, and counts them.
type fold struct {
	told []recentLine // the last lines written, the newest last
	more int          // lines suppressed since
}

type recentLine struct {
	text string // without its time
	at   time.Time
}

const (
	foldLines = 32          // lines remembered
	foldTime  = time.Minute // after this time a line is written again
)

// fresh reports whether a line is to be written, and returns a line about those suppressed before it, if any.
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
	// stamp matches a time at the beginning of a line.
	stamp = regexp.MustCompile(`^[\[(]?[0-9]{1,4}[-/:.][0-9][-/:.,0-9TZ+ ]*[\])]?\s*`)

	// escapes matches sequences that terminals obey (ECMA-48: CSI, OSC, and those of two characters).
	escapes = regexp.MustCompile(`\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[ -Z\\^-~])`)
)

// withoutArt returns a line without colours, frames and pictures; "" if no letter or digit is left.
func withoutArt(line string) string {
	line = strings.ReplaceAll(escapes.ReplaceAllString(line, ""), "\r", " ") // a progress bar redraws its line
	bare := strings.TrimFunc(strings.Map(func(r rune) rune {
		if isArt(r) {
			return ' '
		}
		return r
	}, line), unicode.IsSpace)
	if !strings.ContainsFunc(bare, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
		return ""
	}
	if bare == strings.TrimSpace(line) {
		return strings.TrimRightFunc(line, unicode.IsSpace) // keep the indentation
	}
	return bare
}

// isArt reports whether a character is a part of pictures: it draws boxes or blocks, or is a geometric shape or
// Braille.
func isArt(r rune) bool {
	return r >= 0x2500 && r <= 0x259f || r >= 0x2800 && r <= 0x28ff || r == 0x1fb00
}
