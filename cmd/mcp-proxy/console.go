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

// A console writes lines for people: a time, whom it is about, and what there is to say.
type console struct {
	// Static.
	obey  func(line string) // writes what is printable, but for colours
	wide  func() int        // of the terminal; 0 for none
	color bool
	live  bool // somebody looks on: it is a terminal

	mu    sync.Mutex // held while a line is written; guards the fields below
	named int        // how wide names are, so far
	folds map[string]*fold
}

// newConsole returns the console on a file, with colours if that is a terminal that has them and
// nobody has said NO_COLOR (no-color.org).
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
	leastNamed = 6  // columns that names have
	mostNamed  = 16 // to which longer ones do not move the rest
	timed      = 60 // columns that a terminal needs to have times
)

// know makes room for names of upstreams.
func (c *console) know(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range names {
		c.named = max(c.named, min(utf8.RuneCountInString(n), mostNamed))
	}
}

// say writes one line about something that has that name.
func (c *console) say(at time.Time, name string, s style, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sayLocked(at, name, s, text)
}

// state writes one line about the state that something is in: one word, and what more there is.
func (c *console) state(name string, s style, state, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lineLocked(time.Now(), name, s, state, plain, text)
}

func (c *console) sayLocked(at time.Time, name string, s style, text string) {
	c.lineLocked(at, name, plain, "", s, text)
}

// lineLocked writes a line: a time, a name, a state if there is one, and text, which is wrapped.
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

// bare is a printable text without colours and the like, which servers mean well.
func bare(text string) string { return printable(escapes.ReplaceAllString(text, "")) }

// write writes text that is printable, but for colours.
func (c *console) write(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.obey(text)
}

// nameStyle is how a name looks before text of a style.
func nameStyle(s style) style {
	if s == dim {
		return dim
	}
	return bold
}

// leastText is how many columns text must have to be wrapped: in fewer a terminal does it as well.
const leastText = 24

// wrap breaks text into lines of so many columns, between words. A longer word has a line of its own.
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
