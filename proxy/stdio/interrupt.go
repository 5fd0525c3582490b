package stdio

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
	r, w := io.Pipe()
	go pumpInto(w, f)
	return &blockingReader{r, f}
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
	*io.PipeReader
	f *os.File
}

func pumpInto(w *io.PipeWriter, f *os.File) {
	_, err := io.Copy(w, f)
	w.CloseWithError(err)
}

// Close must be called once.
func (r *blockingReader) Close() error {
	r.PipeReader.Close()
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
