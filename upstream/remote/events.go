package remote

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"time"
)

const (
	// eventSlack is how many bytes an event may have beyond its message, for names of
	// fields and its id. Comments do not count.
	eventSlack = 64 << 10

	maxEventID = 1 << 10 // bytes; a longer id is not used to resume

	// Bounds of the server's retry field.
	maxRetry = time.Minute
	minRetry = 10 * time.Millisecond
)

const byteOrderMark = "\ufeff"

// errEventTooLong stands for an event that was skipped.
var errEventTooLong = errors.New("event too long")

// An event is a server-sent event.
type event struct {
	kind  string // "" for a message
	data  string
	id    string        // "" if it has no usable one
	retry time.Duration // how long to wait before resuming; zero without a retry field
}

// events reads server-sent events. It cuts the stream at blank lines, and drops
// comments at once, so that they cost no memory. (The libraries that were tried scan
// a long event from its start for each packet, keep the buffer of the longest event,
// or do not return the retry field. A test compares this reader with one of them.)
type events struct {
	r       *bufio.Reader
	max     int // bytes of one event
	buf     []byte
	begun   bool // a byte order mark was skipped if there was one
	start   bool // at the start of a line
	afterCR bool // a line feed that follows belongs to the last line
	comment bool // in a comment
	skip    bool // the event is too long
	unsaid  bool // next has not yet returned errEventTooLong for it
}

func newEvents(r io.Reader, maxMessage int) *events {
	return &events{r: bufio.NewReader(r), max: maxMessage + eventSlack, start: true}
}

// next returns the next event. It returns errEventTooLong as soon as one is too long, and
// skips the rest of it in the next call. The error is io.EOF if the stream ended, and
// another one if it broke off.
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
		case err == io.EOF && len(e.buf) > 0 && !e.skip:
			return e.unfinished()
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

// unfinished returns the event that the stream ended in, if it has a whole message: some servers omit the last blank
// line. Else the stream was cut off there, and the event comes again when it is resumed (HTML, "Interpreting an event
// stream": an incomplete event is discarded). Its id may have been cut off in either case.
func (e *events) unfinished() (event, error) {
	ev := e.parse()
	if ev.kind != "" || !json.Valid([]byte(ev.data)) {
		return event{}, io.EOF
	}
	return event{data: ev.data}, nil
}

// more reads buffered bytes, at most to the end of a line. It reports whether that was a
// blank line, which ends an event.
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

// drop discards n buffered bytes.
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

// retryIn returns the value of a retry field, or before if the field is no number.
func retryIn(value []byte, before time.Duration) time.Duration {
	ms, err := strconv.ParseUint(string(value), 10, 31)
	if err != nil {
		return before
	}
	return min(max(time.Duration(ms)*time.Millisecond, minRetry), maxRetry)
}

// A resumePoint is where a stream can be resumed.
type resumePoint struct {
	lastID string        // of the last event that had one
	retry  time.Duration // the pause that the server asks for; zero for none
	asked  bool          // the server has asked for it in this stream
	came   bool          // an event has come
	moved  bool          // a message has come, or another id
}

// wait returns the pause before the stream is resumed.
func (p *resumePoint) wait(otherwise time.Duration) time.Duration { return cmp.Or(p.retry, otherwise) }

// read calls message with the text of each message, or with errEventTooLong instead. It
// returns nil when message returns false, and an error when the stream ends.
func (p *resumePoint) read(e *events, message func(text string, err error) bool) error {
	for {
		ev, err := e.next()
		if err != nil && !errors.Is(err, errEventTooLong) {
			return err
		}
		if ev.retry > 0 {
			p.retry, p.asked = ev.retry, true
		}
		if ev.id != "" {
			p.came, p.moved = true, p.moved || ev.id != p.lastID
			p.lastID = ev.id
		}
		if err == nil && (ev.kind != "" || ev.data == "") { // an event may have only an id
			continue
		}
		p.came, p.moved = true, true
		if !message(ev.data, err) {
			return nil
		}
	}
}
