package process

import (
	"os"
	"sync"
	"time"
)

const (
	// maxBacklog bounds the bytes that wait for a full stdin pipe; beyond, write
	// blocks, and with it the stream, which is its flow control. It is more than
	// a stream has in transit, so that its end is usually seen behind the data.
	maxBacklog = 1 << 20

	// drainChunk is the piece whose writing counts as progress. Small, so that a
	// busy server that reads a little now and then is not taken for a stuck one.
	drainChunk = 4 << 10
)

// A stdin writes lines to a process, in order. While the pipe has room a line
// goes straight into it, without a hand-over; when it is full, the rest goes to
// a backlog that a goroutine of its own writes, so that whoever reads the stream
// goes on and sees a cancellation, or the stream's end.
type stdin struct {
	// Static after construction.
	f       *os.File
	try     func([]byte) (int, error) // writes what fits at once
	timeout time.Duration             // without progress
	failed  func(error)               // told once, by a goroutine: os.ErrDeadlineExceeded or what a write returned
	wg      *sync.WaitGroup           // of these goroutines; none is started after abort

	mu       sync.Mutex // guards the fields below; never held while a write may block
	changed  sync.Cond  // the backlog shrank, or done was set
	backlog  []byte
	draining bool // drain runs, and only it writes
	done     bool // nothing is accepted any more; f is closed after the backlog
	took     int  // bytes that the pipe has taken
}

func newStdin(f *os.File, timeout time.Duration, wg *sync.WaitGroup, failed func(error)) *stdin {
	s := &stdin{f: f, try: tryWriter(f), timeout: timeout, failed: failed, wg: wg}
	s.changed.L = &s.mu
	return s
}

// write accepts one or more lines, and calls accepted just before; it keeps nothing
// of p. It blocks while the backlog is full, until finish or abort. Then, and after
// a failure, lines are dropped.
func (s *stdin) write(p []byte, accepted func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.backlog) >= maxBacklog && !s.done {
		s.changed.Wait()
	}
	if s.done {
		return
	}
	accepted()
	if err := s.acceptLocked(p); err != nil {
		s.wg.Go(func() { s.failed(err) })
	}
}

// finish writes the last lines, which a full backlog does not hold up, and
// closes the pipe behind them. It does not wait for that. last is called when write
// accepts no more.
func (s *stdin) finish(last func() []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return
	}
	s.acceptLocked(last()) // an error: there is nobody left to tell it
	s.stopLocked()
	if !s.draining {
		s.f.Close()
	}
}

// abort closes the pipe at once. It may be called repeatedly.
func (s *stdin) abort() {
	s.mu.Lock()
	s.stopLocked()
	s.mu.Unlock()
	s.f.Close() // unblocks drain
}

// unread reports whether the process surely has read nothing. It may be called until finish or
// abort.
func (s *stdin) unread() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.took == 0 || bytesIn(s.f) >= s.took
}

func (s *stdin) stopLocked() {
	s.done = true
	s.changed.Broadcast()
}

func (s *stdin) acceptLocked(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if !s.draining {
		n, err := s.try(p)
		if err != nil {
			s.stopLocked()
			return err
		}
		s.took += n
		if p = p[n:]; len(p) == 0 {
			return nil
		}
		s.draining = true
		s.wg.Go(s.drain)
	}
	s.backlog = append(s.backlog, p...)
	return nil
}

// drain writes the backlog until it is empty. A timer watches it and not a write
// deadline, which pipes do not have everywhere; closing f unblocks it, or where
// that does not, the end of the process.
func (s *stdin) drain() {
	watch := time.AfterFunc(s.timeout, func() { s.fail(os.ErrDeadlineExceeded) })
	defer watch.Stop()
	for {
		chunk := s.next()
		if chunk == nil {
			return
		}
		n, err := s.f.Write(chunk)
		if err != nil {
			s.fail(err)
			return
		}
		watch.Reset(s.timeout)
		s.wrote(n)
	}
}

// next returns what drain writes next, nil when it has to end.
func (s *stdin) next() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.backlog) > 0 {
		return s.backlog[:min(len(s.backlog), drainChunk)]
	}
	s.backlog, s.draining = nil, false
	if s.done {
		s.f.Close()
	}
	return nil
}

func (s *stdin) wrote(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backlog = s.backlog[n:]
	s.took += n
	s.changed.Broadcast()
}

// fail tells a failure of drain, unless the pipe is being closed anyway.
func (s *stdin) fail(err error) {
	s.mu.Lock()
	told := s.done
	s.stopLocked()
	s.mu.Unlock()
	if !told {
		s.failed(err)
	}
}
