package jsonrpc

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"
)

const (
	smallBuffer = 4 << 10  // kept by an idle reader or writer
	largeLine   = 64 << 10 // handed on instead of copied
)

// A LineReader reads the stdio framing: messages separated by newlines
// (2025-11-25 basic/transports: "Messages are delimited by newlines, and MUST
// NOT contain embedded newlines"). It is for one goroutine.
type LineReader struct {
	r      io.Reader
	limits Limits

	buf        []byte // buf[start:end] is unread
	start, end int
	scanned    int // buf[start:scanned] holds no newline
	err        error
}

// NewLineReader returns a LineReader on r. It reads ahead.
func NewLineReader(r io.Reader, limits Limits) *LineReader {
	return &LineReader{r: r, limits: limits}
}

// Read returns the next message. An [*InvalidError] costs that line only; any
// other error is r's, io.EOF after a complete last line.
func (l *LineReader) Read() (*Message, error) {
	line, err := l.ReadLine()
	if err != nil {
		return nil, err
	}
	return l.limits.Decode(line)
}

// ReadLine returns the next line that is not blank, without its end. The caller
// owns the bytes. A line over the limit is skipped in constant memory and
// reported as an [*InvalidError], with its id if it had one.
func (l *LineReader) ReadLine() ([]byte, error) {
	for {
		line, ok := l.buffered()
		if !ok {
			if l.end-l.start > l.limits.MaxMessage() {
				return nil, l.skipLine()
			}
			if err := l.fill(); err != nil {
				return l.lastLine(err)
			}
			continue
		}
		if len(line) > l.limits.MaxMessage() {
			return nil, tooLong(scanID(line))
		}
		if line = bytes.Trim(line, space); len(line) > 0 {
			return l.own(line), nil
		}
	}
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

// own returns line as the caller's: a short one copied, a long one with the
// buffer that it stands in.
func (l *LineReader) own(line []byte) []byte {
	if len(line) < largeLine {
		return bytes.Clone(line)
	}
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
	case l.start == l.end:
		l.start, l.scanned, l.end = 0, 0, 0
	case l.end == len(l.buf) && l.start > 0:
		copy(l.buf, l.buf[l.start:l.end])
		l.end -= l.start
		l.start, l.scanned = 0, l.end
	}
	if l.end == len(l.buf) {
		// No more than the limit and a little: a line that fills it is skipped.
		grown := make([]byte, max(smallBuffer, min(2*len(l.buf), l.limits.MaxMessage()+smallBuffer)))
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

// lastLine returns what stood before the end without a newline, once.
func (l *LineReader) lastLine(err error) ([]byte, error) {
	line := bytes.Trim(l.buf[l.start:l.end], space)
	l.buf, l.start, l.scanned, l.end = nil, 0, 0, 0
	if err != io.EOF || len(line) == 0 {
		return nil, err
	}
	return line, nil
}

// skipLine drops the rest of an over-long line, looking for its id.
func (l *LineReader) skipLine() error {
	var scan idScanner
	for {
		line, ok := l.buffered()
		if ok {
			scan.Write(line)
			return tooLong(scan.found())
		}
		scan.Write(l.buf[l.start:l.end])
		l.start, l.scanned, l.end = 0, 0, 0
		if len(l.buf) > largeLine {
			l.buf = make([]byte, largeLine)
		}
		if err := l.fill(); err != nil {
			return tooLong(scan.found())
		}
	}
}

func tooLong(id ID, reply bool) error {
	return &InvalidError{CodeInvalidRequest, "message too large", id, reply}
}

// A LineWriter writes the stdio framing, each message with one Write. It may be
// used by many goroutines. Its first error is also that of every later call,
// which touches no buffer any more: a Write that failed by being abandoned may
// still be using it.
type LineWriter struct {
	mu  sync.Mutex // held across Write: it is what orders messages
	w   io.Writer
	buf []byte
	err error // of the first Write that failed; the line it broke off is never continued
}

// NewLineWriter returns a LineWriter on w.
func NewLineWriter(w io.Writer) *LineWriter { return &LineWriter{w: w} }

// Write writes m and a newline.
func (l *LineWriter) Write(m *Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	l.buf = append(m.Append(l.buf[:0]), '\n')
	return l.flush()
}

// WriteAll writes messages, as many in one Write as make up a large line.
func (l *LineWriter) WriteAll(messages []*Message) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	l.buf = l.buf[:0]
	for i, m := range messages {
		l.buf = append(m.Append(l.buf), '\n')
		if len(l.buf) < largeLine && i < len(messages)-1 {
			continue
		}
		if err := l.flush(); err != nil {
			return err
		}
	}
	return nil
}

// WriteLines writes text that is made of whole lines.
func (l *LineWriter) WriteLines(text []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.write(text)
}

// flush writes what is in buf and empties it; idle writers keep little.
func (l *LineWriter) flush() error {
	err := l.write(l.buf)
	l.buf = l.buf[:0]
	if cap(l.buf) > smallBuffer {
		l.buf = nil
	}
	return err
}

func (l *LineWriter) write(text []byte) error {
	if l.err == nil {
		_, l.err = l.w.Write(text)
	}
	return l.err
}

// lineConn is a Conn over a pair of byte streams.
type lineConn struct {
	*LineReader
	*LineWriter
	close  func() error
	closed atomic.Bool
}

// NewLineConn returns a Conn that speaks the stdio framing on r and w. Its Close
// calls close once, which must unblock reads of r and writes to w.
func NewLineConn(r io.Reader, w io.Writer, limits Limits, close func() error) Conn {
	return &lineConn{LineReader: NewLineReader(r, limits), LineWriter: NewLineWriter(w), close: close}
}

func (c *lineConn) Recv() (*Message, error) {
	m, err := c.LineReader.Read()
	if err == nil {
		return m, nil
	}
	if _, ok := err.(*InvalidError); ok {
		return nil, err
	}
	if err == io.EOF && !c.closed.Load() {
		return nil, err
	}
	return nil, Closed(err)
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
