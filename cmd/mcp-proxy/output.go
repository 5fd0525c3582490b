package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// An output is stdout or stderr. Everything that this program prints goes through one; a test
// checks that. Names, descriptions, errors and logs come from servers, clients and other machines,
// and a terminal would obey control characters in them. So an output escapes these as JSON does
// (\u001b), also if it is no terminal itself: a pipe may lead to one, as with ssh or kubectl.
type output struct {
	file    *os.File
	dropped atomic.Int64 // writes that failed; the log takes it

	mu     sync.Mutex    // held while something is written; guards the rest
	held   []byte        // the end of the last write if it was \r or a part of a character
	failed error         // of the first write that failed
	serve  bool          // drop what nobody reads
	wait   time.Duration // how long writes may still wait for a reader, together, before one is at once
	stuck  chan error    // of a write that has found no reader in that time; nil: none

	torn bool // the file ends within a line whose rest could not be written; owned by the write in progress
}

const (
	// readerTime is how long a program that serves waits for whoever has fallen behind with its log. It must end
	// within 1.5 s of a signal.
	readerTime = 500 * time.Millisecond

	// atOnce is the longest wait of a write that counts as none. A busy machine may need it.
	atOnce = 50 * time.Millisecond
)

var errUnread = errors.New("nobody reads it")

// serves makes writes drop what nobody reads. A program that serves must not stand still because the one that has
// started it does not read its log, or has stopped the terminal.
func (o *output) serves() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.serve, o.wait = true, readerTime
}

// putLocked writes text to the file. Behind a write that is stuck it drops it.
func (o *output) putLocked(text []byte) error {
	if !o.serve {
		return o.put(text)
	}
	if o.stuck != nil {
		select {
		case err := <-o.stuck:
			o.stuck = nil
			o.noteLocked(err)
		default:
			return errUnread
		}
	}
	written := make(chan error, 1) // so that write returns
	began := time.Now()
	go o.write(bytes.Clone(text), written)
	select {
	case err := <-written:
		if waited := time.Since(began); waited > atOnce {
			o.wait = max(0, o.wait-waited)
		} else {
			o.wait = readerTime
		}
		return err
	case <-time.After(max(o.wait, atOnce)):
		o.stuck, o.wait = written, 0
		return nil // it is written as soon as somebody reads
	}
}

// write runs until somebody reads: nothing else interrupts it, and there is one at a time.
func (o *output) write(text []byte, written chan<- error) {
	written <- o.put(text)
}

// put writes text. What follows a line that a full disk has torn begins a new one, so that only one line is spoilt.
func (o *output) put(text []byte) error {
	if o.torn {
		text = append([]byte{'\n'}, text...)
	}
	n, err := o.file.Write(text)
	if n > 0 {
		o.torn = err != nil && text[n-1] != '\n'
	}
	return err
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
	if err := o.putLocked(safe); err != nil {
		o.noteLocked(err)
		return 0, err
	}
	return len(p), nil
}

// noteLocked notes the result of a write, which for one that was stuck comes only later.
func (o *output) noteLocked(err error) {
	if err != nil {
		o.failed = cmp.Or(o.failed, err)
		o.dropped.Add(1)
	}
}

// printed returns a runError if something could not be written, as to a full disk.
func (o *output) printed() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed != nil {
		return &runError{o.failed}
	}
	return nil
}

// command writes text as it is, with the escape sequences of [paint] and top.
func (o *output) command(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.putLocked([]byte(text)) // a closed terminal is no error
}

// exact returns a writer that changes nothing, unless the output is a terminal.
func (o *output) exact() io.Writer {
	if o.isTerminal() {
		return o
	}
	return o.file
}

// pipe returns a file for messages to a client: the output's own, or a pipe that leads to it if it is a
// terminal. The caller closes the file, and then wait returns when all is written.
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
		defer out.Close() // if the output fails, writes to the pipe do, too
		_, _ = io.Copy(o, out)
	})
	return in, wg.Wait, nil
}

func (o *output) isTerminal() bool { return term.IsTerminal(int(o.file.Fd())) }

// width returns the columns of the terminal; 0 if it is none.
func (o *output) width() int {
	w, _, err := term.GetSize(int(o.file.Fd()))
	if err != nil {
		return 0
	}
	return w
}

// isPlain reports whether a text is printable ASCII, tabs and newlines: most text is, and needs no copy.
func isPlain(text []byte) bool {
	for _, b := range text {
		if b < ' ' && b != '\n' && b != '\t' || b >= 0x7f {
			return false
		}
	}
	return true
}

// spellOut escapes all that a terminal would obey, except \n and \t. held is the end of text that cannot be judged
// before more follows.
func spellOut(text []byte) (safe, held []byte) {
	safe = make([]byte, 0, len(text)+16)
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == '\r' && len(text) == 1, r == utf8.RuneError && !utf8.FullRune(text):
			return safe, text
		case r == '\r' && text[1] == '\n': // Windows ends lines so
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

// isObeyed reports whether a terminal acts on a character: control characters of C0 and C1, those that
// change the direction of text, and line ends that only some programs know.
func isObeyed(r rune) bool {
	return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// printable escapes a text as an output does, and replaces tabs by spaces: its characters can be counted as columns.
func printable(text string) string {
	safe, held := spellOut([]byte(text))
	if len(held) > 0 && held[0] != '\r' {
		safe = utf8.AppendRune(safe, utf8.RuneError)
	}
	return strings.ReplaceAll(string(safe), "\t", " ")
}

// oneLine returns the first line of a text, printable, and cut to most characters (0: not cut).
func oneLine(text string, most int) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	return cut(printable(text), most)
}

// cut shortens a text to most characters; 0 means no limit.
func cut(text string, most int) string {
	if most < 1 || utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}

// A style is a parameter of SGR (ECMA-48), which sets colours and weight.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

// paint returns a text, made printable, in a style.
func paint(s style, text string) string {
	if text = printable(text); s == plain || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// printJSON prints a value to stdout, indented. Its error is a runError.
func printJSON(v any) error {
	out := json.NewEncoder(stdout)
	out.SetEscapeHTML(false)
	out.SetIndent("", "  ")
	if err := out.Encode(v); err != nil {
		return &runError{err}
	}
	return nil
}

// printAnswer prints an answer as JSON, or for people with print. Its error is a runError.
func printAnswer(answer any, asJSON bool, print func()) error {
	if asJSON {
		return printJSON(answer)
	}
	print()
	return stdout.printed()
}
