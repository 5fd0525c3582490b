package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// An output is stdout or stderr, and all that this program prints passes one: a test allows no
// other way. Names, descriptions, errors and logs come from servers, clients and other machines,
// and a terminal would obey what is in them. So an output spells that out, as JSON does (\u001b),
// also where it is no terminal itself: a pipe may lead to one, as that of ssh or kubectl does.
type output struct {
	file *os.File

	mu   sync.Mutex // held while something is written; guards held
	held []byte     // a part of a character, or \r, which the last write ended with
}

var (
	stdout = &output{file: os.Stdout}
	stderr = &output{file: os.Stderr}
)

// Write implements [io.Writer].
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	safe, held := p, []byte(nil)
	if len(o.held) > 0 || !isPlain(p) {
		safe, held = spellOut(append(o.held, p...))
	}
	o.held = held
	if _, err := o.file.Write(safe); err != nil {
		return 0, err
	}
	return len(p), nil
}

// command writes text of which a terminal is to obey what [paint] and top have put there.
func (o *output) command(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, _ = o.file.WriteString(text) // whoever closes the terminal wants nothing
}

// exact is for what must stay as it is, byte for byte, unless it goes to a terminal.
func (o *output) exact() io.Writer {
	if o.isTerminal() {
		return o
	}
	return o.file
}

// pipe returns a file for messages to a client, whoever gets it closes it, and then wait returns.
// It is the output's own, unless that is a terminal, where a person looks at messages.
func (o *output) pipe() (in *os.File, wait func(), err error) {
	if !o.isTerminal() {
		return o.file, func() {}, nil
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer out.Close() // then the client has gone
		_, _ = io.Copy(o, out)
	})
	return in, wg.Wait, nil
}

func (o *output) isTerminal() bool { return term.IsTerminal(int(o.file.Fd())) }

// width is how wide the terminal is; 0 for none.
func (o *output) width() int {
	w, _, err := term.GetSize(int(o.file.Fd()))
	if err != nil {
		return 0
	}
	return w
}

// isPlain reports whether all of a text is what most text is.
func isPlain(text []byte) bool {
	for _, b := range text {
		if b < ' ' && b != '\n' && b != '\t' || b >= 0x7f {
			return false
		}
	}
	return true
}

// spellOut returns a text of which a terminal obeys nothing but \n and \t, and the end that says
// nothing until more follows.
func spellOut(text []byte) (safe, held []byte) {
	safe = make([]byte, 0, len(text)+16)
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == '\r' && len(text) == 1, r == utf8.RuneError && !utf8.FullRune(text):
			return safe, text
		case r == '\r' && text[1] == '\n': // the end of a line, of Windows
		case r == utf8.RuneError && n == 1:
			safe = utf8.AppendRune(safe, r)
		case isObeyed(r):
			safe = fmt.Appendf(safe, `\u%04x`, r)
		default:
			safe = append(safe, text[:n]...)
		}
		text = text[n:]
	}
	return safe, nil
}

// isObeyed tells of the characters that do something: control characters of C0 and C1, those that
// change the direction of what is around them, and the line ends that only some programs know.
func isObeyed(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// printable is a text as an output writes it, with spaces for tabs, for what counts columns.
func printable(text string) string {
	safe, held := spellOut([]byte(text))
	if len(held) > 0 && held[0] != '\r' {
		safe = utf8.AppendRune(safe, utf8.RuneError)
	}
	return strings.ReplaceAll(string(safe), "\t", " ")
}

// oneLine makes a text of a server fit for a line of a table: its first line, of which a
// terminal obeys nothing.
func oneLine(text string, most int) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	return cut(printable(text), most)
}

// cut is the first characters of a text, all for 0.
func cut(text string, most int) string {
	if most < 1 || utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}

// A style is what SGR calls how text looks.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

// paint is a printable text in a style.
func paint(s style, text string) string {
	if text = printable(text); s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// printJSON prints a value as people read it.
func printJSON(v any) error {
	out := json.NewEncoder(stdout)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	return out.Encode(v)
}
