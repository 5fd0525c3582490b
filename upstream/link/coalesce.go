package link

import (
	"encoding/binary"
	"io"
	"sync"
)

// coalesceSize is how many bytes may be pending, besides one frame; then Write waits.
const coalesceSize = 64 << 10

// A coalescer joins small writes. yamux writes the header and the body of each frame
// separately, and the frames of all streams one by one. Nothing is delayed: a goroutine
// writes everything that is pending with one Write, and data that come meanwhile with the
// next.
type coalescer struct {
	w io.Writer

	mu      sync.Mutex // guards the fields below; not held while w is written to
	ready   sync.Cond  // for run: there is something to write, or err is set
	room    sync.Cond  // for Write: pending was taken, or err is set
	pending []byte
	partial bool  // pending ends with a header whose body comes at once
	err     error // of w, or io.ErrClosedPipe
	done    chan struct{}
}

// newCoalescer starts the goroutine that writes to w, until Close.
func newCoalescer(w io.Writer) *coalescer {
	c := &coalescer{w: w, done: make(chan struct{})}
	c.ready.L, c.room.L = &c.mu, &c.mu
	go c.run()
	return c
}

// Write queues p. Its error is that of an earlier Write to w.
func (c *coalescer) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.pending) >= coalesceSize && !c.partial && c.err == nil {
		c.room.Wait()
	}
	if c.err != nil {
		return 0, c.err
	}
	c.pending = append(c.pending, p...)
	if c.partial = !c.partial && announcesBody(p); !c.partial {
		c.ready.Signal()
	}
	return len(p), nil
}

// announcesBody reports whether p is the header of a yamux frame with a body: version 0, type
// data, flags and stream, length. yamux writes the body next.
func announcesBody(p []byte) bool {
	return len(p) == 12 && p[0] == 0 && p[1] == 0 && binary.BigEndian.Uint32(p[8:]) > 0
}

// run writes pending data until an error.
func (c *coalescer) run() {
	defer close(c.done)
	var spare []byte
	for {
		text, err := c.take(spare)
		if err != nil {
			return
		}
		if _, err := c.w.Write(text); err != nil {
			c.fail(err)
			return
		}
		spare = text
	}
}

// take waits for pending data and returns them. spare becomes the next buffer.
func (c *coalescer) take(spare []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for (len(c.pending) == 0 || c.partial) && c.err == nil {
		c.ready.Wait()
	}
	text := c.pending
	c.pending = spare[:0]
	c.room.Broadcast()
	return text, c.err
}

// fail makes all present and future calls of Write fail.
func (c *coalescer) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	c.ready.Signal()
	c.room.Broadcast()
}

// Close ends run and waits for it. The caller must have unblocked a Write to w.
func (c *coalescer) Close() error {
	c.fail(io.ErrClosedPipe)
	<-c.done
	return nil
}
