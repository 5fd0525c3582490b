package proxy

import (
	"context"
	"log"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// anonymousLog is the log of what peers can cause that have proved nothing: requests that are
// refused, handshakes that fail, links that never come up. Of each message it writes a few
// lines, and then how many were left out, so that nobody can fill a disk or hide a line among
// thousands. Everything of that kind is logged here.
type anonymousLog struct {
	log *slog.Logger // for them

	base  slog.Handler
	mu    sync.Mutex // guards the fields below
	lines map[string]*anonymousLine
	ended bool
}

// A anonymousLine is one message, which is a constant of the program.
type anonymousLine struct {
	limit   *rate.Limiter
	level   slog.Level
	leftOut int
	tells   *time.Timer // of how many were left out; nil if none were
}

const (
	anonymousBurst = 10               // lines of one message at once
	anonymousEvery = 10 * time.Second // another line, and how many were left out
)

func newAnonymousLog(to *slog.Logger) *anonymousLog {
	s := &anonymousLog{base: to.Handler(), lines: make(map[string]*anonymousLine)}
	s.log = slog.New(anonymousHandler{s.base, s})
	return s
}

// An anonymousHandler writes what its anonymousLog admits.
type anonymousHandler struct {
	slog.Handler
	of *anonymousLog
}

// Handle implements [slog.Handler].
func (h anonymousHandler) Handle(ctx context.Context, r slog.Record) error {
	if !h.of.admit(r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h anonymousHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return anonymousHandler{h.Handler.WithAttrs(attrs), h.of}
}

// WithGroup implements [slog.Handler].
func (h anonymousHandler) WithGroup(name string) slog.Handler {
	return anonymousHandler{h.Handler.WithGroup(name), h.of}
}

// admit reports whether a line is written, and counts it if not.
func (s *anonymousLog) admit(r slog.Record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[r.Message]
	if l == nil {
		l = &anonymousLine{limit: rate.NewLimiter(rate.Every(anonymousEvery), anonymousBurst)}
		s.lines[r.Message] = l
	}
	if s.ended || l.limit.Allow() {
		return true
	}
	l.level = r.Level
	if l.leftOut++; l.tells == nil {
		l.tells = time.AfterFunc(anonymousEvery, func() { s.tell(r.Message) })
	}
	return false
}

// tell writes how many lines of a message were left out.
func (s *anonymousLog) tell(message string) {
	s.mu.Lock()
	l := s.lines[message]
	level, n := l.level, l.leftOut
	l.leftOut, l.tells = 0, nil
	s.mu.Unlock()
	if n == 0 { // end has told
		return
	}
	r := slog.NewRecord(time.Now(), level, message+": … and more", 0)
	r.Add("left_out", n)
	_ = s.base.Handle(context.Background(), r)
}

// end tells at once what is still to be told. Nothing is left out any more.
func (s *anonymousLog) end() {
	s.mu.Lock()
	s.ended = true
	var untold []string
	for message, l := range s.lines {
		if l.tells != nil && l.tells.Stop() {
			untold = append(untold, message)
		}
	}
	s.mu.Unlock()
	for _, message := range untold {
		s.tell(message)
	}
}

// httpErrors is what net/http writes its errors to: connections that end in a TLS handshake,
// or that are none.
func (s *anonymousLog) httpErrors() *log.Logger { return log.New(httpErrors{s.log}, "", 0) }

type httpErrors struct{ log *slog.Logger }

// Write implements [io.Writer].
func (e httpErrors) Write(line []byte) (int, error) {
	e.log.Debug("HTTP connection failed", "err", strings.TrimSpace(string(line)))
	return len(line), nil
}
