package jsonrpc

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

const (
	smallBuffer = 1 << 10  // of a reader that has seen only short lines
	busyBuffer  = 16 << 10 // of a reader that receives many lines at once
	largeLine   = 64 << 10 // passed on without a copy
)

// A LineReader reads the stdio framing: messages separated by newlines (2025-11-25
// basic/transports: "Messages are delimited by newlines, and MUST NOT contain embedded newlines").
// It is for one goroutine.
type LineReader struct {
	r      io.Reader
	limits Limits
	slots  Slots // nil: no bound

	buf        []byte // buf[start:end] is unread
	start, end int
	scanned    int // buf[start:scanned] has no newline
	err        error
	longest    int  // length of the last line, if it was long: the next one may be similar
	entered    bool // a slot is taken for the current line
	begun      bool // Read has returned the first line
	open       bool // the last line has no newline
}

// Slots bound how many large messages are read at the same time, because the part of a message that
// has arrived stays in memory until the rest has.
type Slots interface {
	// Enter waits for a slot, or until gone is closed. Its error becomes the reader's.
	Enter(gone <-chan struct{}) error

	Leave() // returns the slot
}

// NewLineReader returns a LineReader on r. It reads ahead.
func NewLineReader(r io.Reader, limits Limits) *LineReader {
	return &LineReader{r: r, limits: limits}
}

// Bound makes l take a slot for each line of 64 KiB and more. It must be called before the first
// read.
func (l *LineReader) Bound(p Slots) { l.slots = p }

// Read returns the next message. An [*InvalidError] affects that line only. Any other error is r's;
// io.EOF comes after a complete last line. A byte order mark before the first line is skipped, as RFC
// 8259 allows (section 8.1): programs on .NET write one. A last line that was cut short is no message, because
// its writer has ended in the midst of it.
func (l *LineReader) Read() (*Message, error) {
	line, err := l.ReadLine()
	if err != nil {
		return nil, err
	}
	if !l.begun {
		l.begun = true
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	m, err := l.limits.Decode(line)
	if err != nil && l.open && isCutShort(line) {
		return nil, io.EOF
	}
	return m, err
}

// ReadLine returns the next line that is not blank, without its line end. The caller owns the
// bytes. A line over the limit is skipped in constant memory and reported as an [*InvalidError],
// with its id if it had one.
func (l *LineReader) ReadLine() ([]byte, error) {
	line, err := l.readLine()
	if l.entered {
		l.entered = false
		l.slots.Leave()
	}
	return line, err
}

func (l *LineReader) readLine() ([]byte, error) {
	for {
		line, ok := l.buffered()
		if !ok {
			if l.end-l.start > l.limits.MaxMessage() {
				return nil, l.skipLine()
			}
			if err := l.enter(); err != nil {
				return nil, err
			}
			if err := l.fill(); err != nil {
				return l.lastLine(err)
			}
			continue
		}
		if len(line) > l.limits.MaxMessage() {
			return nil, l.oversize(scanID(line))
		}
		if line = bytes.Trim(line, space); len(line) > 0 {
			return l.own(line), nil
		}
	}
}

// enter takes a slot once a large part of a line has arrived.
func (l *LineReader) enter() error {
	if l.slots == nil || l.entered || l.end-l.start < largeLine {
		return nil
	}
	err := l.slots.Enter(nil)
	l.entered = err == nil
	return err
}

// Buffered reports whether a whole line has been read ahead, so that the next Read or ReadLine
// returns at once.
func (l *LineReader) Buffered() bool {
	ahead := bytes.TrimLeft(l.buf[l.start:l.end], space)
	return bytes.IndexByte(ahead, '\n') >= 0
}

// Rest takes what was read ahead, for somebody who reads on without l.
func (l *LineReader) Rest() []byte {
	rest := l.buf[l.start:l.end]
	l.buf, l.start, l.scanned, l.end = nil, 0, 0, 0
	return rest
}

// buffered takes a complete line out of the buffer.
func (l *LineReader) buffered() ([]byte, bool) {
	i := bytes.IndexByte(l.buf[l.scanned:l.end], '\n')
	if i < 0 {
		l.scanned = l.end
		return nil, false
	}
	line := l.buf[l.start : l.scanned+i]
	l.start = l.scanned + i + 1
	l.scanned = l.start
	return line, true
}

// own returns line in memory that the caller owns: a short line as a copy, a long line together
// with its buffer.
func (l *LineReader) own(line []byte) []byte {
	if len(line) < largeLine {
		if l.longest > 0 && len(l.buf) > largeLine && l.start == l.end { // which was made for another long line
			l.buf, l.longest = nil, 0
			l.start, l.scanned, l.end = 0, 0, 0
		}
		return bytes.Clone(line)
	}
	l.longest = len(line)
	rest := l.buf[l.start:l.end]
	l.buf = make([]byte, max(smallBuffer, len(rest)))
	l.start, l.scanned, l.end = 0, 0, copy(l.buf, rest)
	return line[:len(line):len(line)]
}

// fill reads once, after making room.
func (l *LineReader) fill() error {
	if l.err != nil {
		return l.err
	}
	switch {
	case l.start == l.end && (l.end < len(l.buf) || l.end >= busyBuffer):
		l.start, l.scanned, l.end = 0, 0, 0
	case l.start == l.end: // the last read filled the buffer, so more may be waiting
		l.buf = make([]byte, l.grownSize())
		l.start, l.scanned, l.end = 0, 0, 0
	case l.end == len(l.buf) && l.start > 0:
		copy(l.buf, l.buf[l.start:l.end])
		l.end -= l.start
		l.start, l.scanned = 0, l.end
	}
	if l.end == len(l.buf) {
		grown := make([]byte, l.grownSize())
		copy(grown, l.buf[:l.end])
		l.buf = grown
	}
	n, err := l.r.Read(l.buf[l.end:])
	l.end += n
	l.err = err
	if n > 0 {
		return nil
	}
	return err
}

// grownSize returns the size of the buffer that replaces a full one. It grows in large steps,
// because each costs a copy and another read, and after a long line at once to the size of that. It
// does not grow beyond the limit and a little more, because a line that fills that is skipped.
func (l *LineReader) grownSize() int {
	size := 4 * len(l.buf)
	switch {
	case len(l.buf) >= largeLine:
		size = max(2*len(l.buf), l.longest+smallBuffer)
	case l.longest > 0 && len(l.buf) > 0:
		size = max(size, l.longest+smallBuffer)
	}
	return max(smallBuffer, min(size, l.limits.MaxMessage()+smallBuffer))
}

// lastLine returns the text before the end that has no newline, once.
func (l *LineReader) lastLine(err error) ([]byte, error) {
	line := bytes.Trim(l.buf[l.start:l.end], space)
	l.buf, l.start, l.scanned, l.end = nil, 0, 0, 0
	if err != io.EOF || len(line) == 0 {
		return nil, err
	}
	l.open = true
	return line, nil
}

// skipLine drops the rest of an over-long line, and looks for its id.
func (l *LineReader) skipLine() error {
	var scan idScanner
	for {
		line, ok := l.buffered()
		if ok {
			scan.Write(line)
			return l.oversize(scan.found())
		}
		scan.Write(l.buf[l.start:l.end])
		l.start, l.scanned, l.end = 0, 0, 0
		if len(l.buf) > largeLine {
			l.buf = make([]byte, largeLine)
		}
		if err := l.fill(); err != nil {
			return l.oversize(scan.found())
		}
	}
}

func (l *LineReader) oversize(id ID, reply bool) error {
	return &InvalidError{CodeInvalidRequest, l.limits.Oversize(), id, reply}
}

// A LineWriter writes the stdio framing. Many goroutines may use it. Its first error is also the
// error of every later call.
type LineWriter struct {
	mu  sync.Mutex // held across Write, to keep messages in order
	w   io.Writer
	err error // of the first Write that failed; the line that it broke off is never continued
}

// NewLineWriter returns a LineWriter on w.
func NewLineWriter(w io.Writer) *LineWriter { return &LineWriter{w: w} }

// buffers are shared by all writers of lines, so that an idle one has none.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// Lines calls write with the text of messages in the stdio framing, which write must not keep.
func Lines(messages []*Message, write func(text []byte)) {
	buf := buffers.Get().(*[]byte)
	text := (*buf)[:0]
	for _, m := range messages {
		text = append(m.Append(text), '\n')
	}
	write(text)
	if cap(text) <= 2*largeLine {
		*buf = text
		buffers.Put(buf)
	}
}

// Write writes m and a newline, with one Write unless m is large.
func (l *LineWriter) Write(m *Message) error { return l.WriteAll([]*Message{m}) }

// WriteAll writes messages, and combines them into Writes of about 64 KiB.
func (l *LineWriter) WriteAll(messages []*Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	buf := buffers.Get().(*[]byte)
	text := (*buf)[:0]
	for _, m := range messages {
		value, head := m.AppendHead(text)
		if len(value) >= largeLine && !hasBreak(value) { // without copying it
			l.write(head)
			l.write(value)
			text = append(text[:0], "}\n"...)
			continue
		}
		if text = append(m.Append(text), '\n'); len(text) >= largeLine {
			l.write(text)
			text = text[:0]
		}
	}
	l.write(text)
	// A failed Write that was abandoned may still be using the buffer.
	if l.err == nil && cap(text) <= 2*largeLine {
		*buf = text
		buffers.Put(buf)
	}
	return l.err
}

// WriteLines writes text that consists of whole lines.
func (l *LineWriter) WriteLines(text []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.write(text)
	return l.err
}

func (l *LineWriter) write(text []byte) {
	if l.err == nil && len(text) > 0 {
		_, l.err = l.w.Write(text)
	}
}

// A lineConn is a Conn over a pair of byte streams.
type lineConn struct {
	*LineReader
	*LineWriter
	close  func() error
	closed atomic.Bool
}

// NewLineConn returns a Conn that uses the stdio framing on r and w. Its Close calls close once;
// close must unblock reads of r and writes to w.
func NewLineConn(r io.Reader, w io.Writer, limits Limits, close func() error) Conn {
	return &lineConn{LineReader: NewLineReader(r, limits), LineWriter: NewLineWriter(w), close: close}
}

func (c *lineConn) Recv() (*Message, error) {
	m, err := c.LineReader.Read()
	if err == nil {
		return m, nil
	}
	if _, ok := errors.AsType[*InvalidError](err); ok {
		return nil, err
	}
	if err == io.EOF && !c.closed.Load() {
		return nil, err
	}
	return nil, Closed(err)
}

func (c *lineConn) RecvAll(batch []*Message) ([]*Message, error) {
	for {
		m, err := c.Recv()
		if err != nil {
			return batch, err
		}
		if batch = append(batch, m); len(batch) >= maxAtOnce || !c.Buffered() {
			return batch, nil
		}
	}
}

func (c *lineConn) Send(m *Message) error {
	if err := c.LineWriter.Write(m); err != nil {
		return Closed(err)
	}
	return nil
}

func (c *lineConn) SendAll(messages []*Message) error {
	if err := c.LineWriter.WriteAll(messages); err != nil {
		return Closed(err)
	}
	return nil
}

func (c *lineConn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	return c.close()
}
