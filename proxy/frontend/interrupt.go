package frontend

import (
	"io"
	"os"
	"time"
)

// Nothing interrupts a read or write of a descriptor that was inherited in blocking mode, not even
// closing it. A pipe or a socket, the usual case, can be made non-blocking. For a terminal or a
// file, a goroutine only reads or writes. Close abandons that goroutine: it stays until the other
// side acts or the process ends. Nothing else in the proxy leaves goroutines behind.

// interruptibleReader returns f as a reader that Close unblocks. It owns f.
func interruptibleReader(f *os.File) io.ReadCloser {
	if canBeInterrupted(f) {
		return f
	}
	if u := unblock(f); u != nil {
		return u
	}
	r := &blockingReader{f: f, chunks: make(chan chunk), gone: make(chan struct{})}
	go r.pump()
	return r
}

// interruptibleWriter returns f as a writer that Close unblocks. It owns f.
func interruptibleWriter(f *os.File) io.WriteCloser {
	if canBeInterrupted(f) {
		return f
	}
	if u := unblock(f); u != nil {
		return u
	}
	w := &blockingWriter{f: f, text: make(chan []byte), written: make(chan error, 1), gone: make(chan struct{})}
	go w.pump()
	return w
}

// canBeInterrupted reports whether closing f unblocks its reads and writes, which it does if f
// supports deadlines.
func canBeInterrupted(f *os.File) bool { return f.SetDeadline(time.Time{}) == nil }

// A blockingReader reads a file in its own goroutine.
type blockingReader struct {
	f      *os.File
	chunks chan chunk    // from pump to Read; never closed
	gone   chan struct{} // closed by Close
	rest   []byte        // owned by Read
}

type chunk struct {
	data []byte
	err  error
}

func (r *blockingReader) pump() {
	for {
		buf := make([]byte, 4<<10)
		n, err := r.f.Read(buf)
		select {
		case r.chunks <- chunk{buf[:n], err}:
		case <-r.gone:
			return
		}
		if err != nil {
			return
		}
	}
}

func (r *blockingReader) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		select {
		case c := <-r.chunks:
			if c.err != nil {
				return 0, c.err
			}
			r.rest = c.data
		case <-r.gone:
			return 0, os.ErrClosed
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Close must be called once.
func (r *blockingReader) Close() error {
	close(r.gone)
	return r.f.Close()
}

// A blockingWriter writes a file in its own goroutine. Only one goroutine may call Write. Write
// keeps p if Close comes first.
type blockingWriter struct {
	f       *os.File
	text    chan []byte   // from Write to pump; never closed
	written chan error    // the result; capacity 1, so that sending never blocks
	gone    chan struct{} // closed by Close
}

func (w *blockingWriter) pump() {
	for {
		select {
		case text := <-w.text:
			_, err := w.f.Write(text)
			w.written <- err
		case <-w.gone:
			return
		}
	}
}

func (w *blockingWriter) Write(p []byte) (int, error) {
	select {
	case w.text <- p:
	case <-w.gone:
		return 0, os.ErrClosed
	}
	select {
	case err := <-w.written:
		return len(p), err
	case <-w.gone:
		return 0, os.ErrClosed
	}
}

// Close must be called once.
func (w *blockingWriter) Close() error {
	close(w.gone)
	return w.f.Close()
}
