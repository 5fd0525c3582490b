package main

import (
	"bufio"
	"errors"
	"io"
	"strconv"
	"sync"

	"github.com/hashicorp/yamux"
)

// A router brings messages of clients to one process, and its answers back. What is between is
// a yamux stream, as where the process is elsewhere, in memory.
type router struct {
	batches bool // messages that arrive together leave together; else each has a write of its own

	writing sync.Mutex // guards out
	out     *bufio.Writer

	mu      sync.Mutex        // guards the fields below; not held while writing
	last    int64             // id
	waiting map[int64]waiting // for an answer, by the id that the process knows
}

// A waiting request has its client's id, and where its answer goes.
type waiting struct {
	id     []byte
	answer func(parts ...[]byte) error
	flush  func() error // nil if answer does
}

func newRouter(in io.Writer, out io.Reader, batches bool) (*router, error) {
	near, far := ring()
	config := yamux.DefaultConfig()
	config.EnableKeepAlive = false
	config.LogOutput = io.Discard
	client, err := yamux.Client(near, config)
	if err != nil {
		return nil, err
	}
	server, err := yamux.Server(far, config)
	if err != nil {
		return nil, err
	}
	stream, err := client.OpenStream()
	if err != nil {
		return nil, err
	}
	other, err := server.AcceptStream()
	if err != nil {
		return nil, err
	}
	r := &router{batches: batches, out: bufio.NewWriterSize(stream, 64<<10), waiting: map[int64]waiting{}}
	go r.relay(in, other)
	go r.relay(other, out)
	go r.answers(stream)
	return r, nil
}

// relay copies messages, each with a write of its own unless they go in batches.
func (r *router) relay(to io.Writer, from io.Reader) {
	in := bufio.NewReaderSize(from, 64<<10)
	out := bufio.NewWriterSize(to, 64<<10)
	for {
		part, err := in.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
		out.Write(part)
		if r.batches && in.Buffered() > 0 {
			continue
		}
		if out.Flush() != nil {
			return
		}
	}
}

// send brings one message to the process. More says that another one is there already.
func (r *router) send(msg []byte, w waiting, more bool) error {
	e, err := read(msg)
	if err != nil {
		return err
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	if e.method != "" && e.end > 0 {
		w.id = append([]byte(nil), msg[e.start:e.end]...)
		r.out.Write(msg[:e.start])
		r.out.Write(strconv.AppendInt(r.out.AvailableBuffer(), r.enter(w), 10))
		msg = msg[e.end:]
	}
	r.out.Write(msg)
	r.out.WriteByte('\n')
	if r.batches && more {
		return nil
	}
	return r.out.Flush()
}

// enter returns the id of a request that waits from now on.
func (r *router) enter(w waiting) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	r.waiting[r.last] = w
	return r.last
}

// answers brings each answer to its client until the stream ends.
func (r *router) answers(stream io.Reader) error {
	in := bufio.NewReaderSize(stream, 64<<10)
	var long []byte
	for {
		line, err := readLine(in, &long)
		if err != nil {
			return err
		}
		e, err := read(line)
		if err != nil {
			return err
		}
		id, err := strconv.ParseInt(string(line[e.start:e.end]), 10, 64)
		if err != nil {
			continue // no answer
		}
		r.mu.Lock()
		w, ok := r.waiting[id]
		delete(r.waiting, id)
		r.mu.Unlock()
		if !ok {
			return errors.New("an answer to nothing")
		}
		w.answer(line[:e.start], w.id, line[e.end:]) // a client that has left needs none
		if w.flush != nil && (!r.batches || in.Buffered() == 0) {
			w.flush()
		}
	}
}

// readLine returns the next line without its end, valid until the next call. The part in long is
// for lines that exceed the reader's buffer.
func readLine(r *bufio.Reader, long *[]byte) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		*long = (*long)[:0]
		for errors.Is(err, bufio.ErrBufferFull) {
			*long = append(*long, line...)
			line, err = r.ReadSlice('\n')
		}
		*long = append(*long, line...)
		line = *long
	}
	if err != nil {
		return nil, err
	}
	return line[:len(line)-1], nil
}
