package process

import (
	"os"
	"sync"
	"time"
)

const (
	// maxBacklog bounds the bytes that wait for a full stdin pipe. When it is reached,
	// write blocks, which is the flow control of the stream. It is more than a link's
	// stream has in transit, so that the stream's end is usually seen.
	maxBacklog = 1 << 20

	// drainChunk is the size of a write that counts as progress. It is small, so that a
	// busy server that reads a little now and then does not count as stuck.
	drainChunk = 4 << 10
)

// A stdin writes lines to a process, in order. While the pipe has room, write writes to it
// directly. When it is full, the rest goes to a backlog that a goroutine writes, so that the
// caller reads on and sees cancellations and the stream's end.
type stdin struct {
	// Static after construction.
	f       *os.File
	try     func([]byte) (int, error) // writes what fits at once
	timeout time.Duration             // without progress
	failed  func(error)               // called once, in a goroutine, with os.ErrDeadlineExceeded or the error of a write
	wg      *sync.WaitGroup           // of this goroutine and drain

	mu       sync.Mutex // guards the fields below; never held while a write may block
	changed  sync.Cond  // the backlog shrank, or done was set
	backlog  []byte
	draining bool // drain runs, and only it writes
	done     bool // nothing is accepted any more; f is closed after the backlog
	took     int  // bytes written to the pipe
}

func newStdin(f *os.File, timeout time.Duration, wg *sync.WaitGroup, failed func(error)) *stdin {
	s := &stdin{f: f, try: tryWriter(f), timeout: timeout, failed: failed, wg: wg}
	s.changed.L = &s.mu
	return s
}

// write writes or queues one or more lines, and calls accepted just before. It keeps nothing
// of p. It blocks while the backlog is full, until finish or abort. After these, and after a
// failure, it drops the lines and does not call accepted.
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

// finish writes or queues the last lines, even if the backlog is full, and then closes the
// pipe. It does not wait. It calls last when write accepts nothing any more.
func (s *stdin) finish(last func() []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return
	}
	s.acceptLocked(last()) // the server is stopped anyway
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

// unread reports whether the process has certainly read nothing. It must not be called after
// finish or abort.
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

// drain writes the backlog until it is empty. It uses a timer, since pipes do not have write
// deadlines on all systems. Closing f unblocks it or, where it does not, the end of the
// process.
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

// next returns the next chunk for drain, nil if it must end.
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

// fail reports a failure of drain, unless the pipe is being closed anyway.
func (s *stdin) fail(err error) {
	s.mu.Lock()
	told := s.done
	s.stopLocked()
	s.mu.Unlock()
	if !told {
		s.failed(err)
	}
}
