package remote

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"strconv"
	"time"
)

const (
	// eventSlack is what an event may have beyond its message: names of fields,
	// its id, comments are not counted.
	eventSlack = 64 << 10

	maxEventID = 1 << 10 // bytes; a longer id is not used to resume

	// Whatever the server says in retry, a stream is resumed after minRetry at the
	// earliest and maxRetry at the latest.
	maxRetry = time.Minute
	minRetry = 10 * time.Millisecond
)

const byteOrderMark = "\ufeff"

// errEventTooLong is an event that is skipped.
var errEventTooLong = errors.New("event too long")

// An event is one that a server sent.
type event struct {
	kind  string // "" for a message
	data  string
	id    string        // "" if it has none of its own that can be used
	retry time.Duration // how long to wait before resuming; zero if it does not say
}

// events reads server-sent events. It cuts the stream at blank lines, and drops
// comments at once, so that they cost no memory. (The libraries that were tried scan
// a long event again from its start for each packet, keep the buffer of the longest,
// or do not tell the retry field. Tests compare what is read here with one of them.)
type events struct {
	r       *bufio.Reader
	max     int // bytes of one event
	buf     []byte
	begun   bool // the byte order mark, if there is one, is read
	start   bool // at the start of a line
	afterCR bool // which a line feed may follow
	comment bool // in a line that is a comment
	skip    bool // the event is too long
	unsaid  bool // and next has not said so
}

func newEvents(r io.Reader, maxMessage int) *events {
	return &events{r: bufio.NewReader(r), max: maxMessage + eventSlack, start: true}
}

// next returns the next event. It returns errEventTooLong as soon as one is too long,
// and skips that when it is called again. The error is io.EOF when the stream ended, and
// another one when it broke.
func (e *events) next() (event, error) {
	if !e.begun {
		e.begun = true
		if mark, _ := e.r.Peek(len(byteOrderMark)); string(mark) == byteOrderMark { // less is no event
			e.drop(len(mark))
		}
	}
	for {
		blank, err := e.more()
		switch {
		case err == io.EOF && len(e.buf) > 0 && !e.skip: // servers forget the last blank line
			return e.parse(), nil
		case err != nil:
			return event{}, err
		case e.unsaid:
			e.unsaid = false
			return event{}, errEventTooLong
		case !blank:
		case e.skip:
			e.skip = false
		case len(e.buf) > 0:
			return e.parse(), nil
		}
	}
}

// more takes what has arrived, at most to the end of a line. It reports whether
// that was a blank line, the end of an event.
func (e *events) more() (blank bool, err error) {
	if _, err := e.r.Peek(1); err != nil {
		return false, err
	}
	buf, _ := e.r.Peek(e.r.Buffered())
	if e.afterCR && buf[0] == '\n' {
		e.afterCR = false
		e.drop(1)
		return false, nil
	}
	e.afterCR = false
	if e.start {
		e.comment = buf[0] == ':'
	}
	n := bytes.IndexAny(buf, "\r\n")
	if n < 0 {
		e.keep(buf)
		e.start = false
		e.drop(len(buf))
		return false, nil
	}
	blank = e.start && n == 0
	if !blank {
		e.keep(buf[:n])
		e.keep([]byte{'\n'})
	}
	e.afterCR, e.start = buf[n] == '\r', true
	e.drop(n + 1)
	return blank, nil
}

// drop moves on by n bytes that are in the buffer.
func (e *events) drop(n int) { _, _ = e.r.Discard(n) }

func (e *events) keep(text []byte) {
	switch {
	case e.comment || e.skip:
	case len(e.buf)+len(text) > e.max:
		e.skip, e.unsaid, e.buf = true, true, nil
	default:
		e.buf = append(e.buf, text...)
	}
}

// parse reads the event in the buffer, and empties the buffer (HTML, "Interpreting an
// event stream").
func (e *events) parse() event {
	var ev event
	var data []byte
	for line := range bytes.Lines(e.buf) {
		name, value, _ := bytes.Cut(bytes.TrimSuffix(line, []byte{'\n'}), []byte{':'})
		value = bytes.TrimPrefix(value, []byte{' '})
		switch string(name) {
		case "event":
			ev.kind = string(value)
		case "data":
			data = append(append(data, value...), '\n')
		case "id":
			ev.id = string(value)
		case "retry":
			ev.retry = retryIn(value, ev.retry)
		}
	}
	e.buf = nil
	ev.data = string(bytes.TrimSuffix(data, []byte{'\n'}))
	if ev.kind == "message" {
		ev.kind = ""
	}
	if len(ev.id) > maxEventID || !sendable(ev.id) {
		ev.id = ""
	}
	return ev
}

// retryIn returns the value of a retry field. If that is no number it does not count.
func retryIn(value []byte, before time.Duration) time.Duration {
	ms, err := strconv.ParseUint(string(value), 10, 31)
	if err != nil {
		return before
	}
	return min(max(time.Duration(ms)*time.Millisecond, minRetry), maxRetry)
}

// A resumePoint is how far a stream was read, for who resumes it.
type resumePoint struct {
	lastID string        // of the last event that had one
	retry  time.Duration // how long the server wants us to wait; zero if it did not say
	came   bool          // an event has come
	moved  bool          // a message has come, or another id
}

// wait returns how long to wait before the stream is resumed.
func (p *resumePoint) wait(otherwise time.Duration) time.Duration { return cmp.Or(p.retry, otherwise) }

// read calls message with the text of each message, or with errEventTooLong in its
// place, until message returns false. Otherwise it returns the end of the stream.
func (p *resumePoint) read(e *events, message func(text string, err error) bool) error {
	for {
		ev, err := e.next()
		if err != nil && !errors.Is(err, errEventTooLong) {
			return err
		}
		if ev.retry > 0 {
			p.retry = ev.retry
		}
		if ev.id != "" {
			p.came, p.moved = true, p.moved || ev.id != p.lastID
			p.lastID = ev.id
		}
		if err == nil && (ev.kind != "" || ev.data == "") { // the event may be there for its id alone
			continue
		}
		p.came, p.moved = true, true
		if !message(ev.data, err) {
			return nil
		}
	}
}
