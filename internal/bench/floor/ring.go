package main

import (
	"io"
	"sync"
)

// ring returns two ends of a connection in memory, each direction of which holds 64 KiB.
func ring() (a, b io.ReadWriteCloser) {
	ab, ba := newHalf(), newHalf()
	return end{ba, ab}, end{ab, ba}
}

type end struct{ in, out *half }

func (e end) Read(p []byte) (int, error)  { return e.in.read(p) }
func (e end) Write(p []byte) (int, error) { return e.out.write(p) }

func (e end) Close() error {
	e.in.close()
	e.out.close()
	return nil
}

// A half is one direction.
type half struct {
	mu       sync.Mutex // guards the fields below
	changed  sync.Cond
	buf      [64 << 10]byte
	start, n int // n bytes from buf[start] on, around the end, are unread
	closed   bool
}

func newHalf() *half {
	h := &half{}
	h.changed.L = &h.mu
	return h
}

func (h *half) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	h.changed.Broadcast()
}

func (h *half) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.n == 0 {
		if h.closed {
			return 0, io.EOF
		}
		h.changed.Wait()
	}
	read := 0
	for read < len(p) && h.n > 0 {
		n := copy(p[read:], h.buf[h.start:min(h.start+h.n, len(h.buf))])
		h.start, h.n, read = (h.start+n)%len(h.buf), h.n-n, read+n
	}
	h.changed.Broadcast()
	return read, nil
}

func (h *half) write(p []byte) (written int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for written < len(p) {
		for h.n == len(h.buf) && !h.closed {
			h.changed.Wait()
		}
		if h.closed {
			return written, io.ErrClosedPipe
		}
		at := (h.start + h.n) % len(h.buf)
		n := copy(h.buf[at:min(at+len(h.buf)-h.n, len(h.buf))], p[written:])
		h.n, written = h.n+n, written+n
		h.changed.Broadcast()
	}
	return written, nil
}
