package process

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"golang.org/x/time/rate"
)

const (
	stderrLine  = 1 << 10 // bytes of a line that are kept
	stderrLines = 20      // last lines that are kept
	stderrRate  = 20      // lines that are logged in a second
	stderrBurst = 100     // and at once
)

// A stderrLog logs a process's stderr, and keeps the last lines for errors and status.
type stderrLog struct {
	mu    sync.Mutex // guards the fields below
	log   *slog.Logger
	quiet func() bool // reports whether to log at level debug
	last  []string
}

// assign sets where it logs.
func (l *stderrLog) assign(log *slog.Logger, quiet func() bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log, l.quiet = log, quiet
}

// readFrom reads r to its end, in constant memory. There is a buffer only from the first byte of something on until
// all of it has been read, because most processes write nothing.
func (l *stderrLog) readFrom(r io.Reader) {
	t := teller{to: l, limit: rate.NewLimiter(stderrRate, stderrBurst)}
	defer t.tellDropped()
	first := make([]byte, 1)
	for {
		_, err := io.ReadFull(r, first)
		if err == nil {
			err = t.tellAll(bufio.NewReaderSize(io.MultiReader(bytes.NewReader(first), r), stderrLine))
		}
		if err != nil {
			return
		}
	}
}

// A teller logs lines as fast as it may. Its work is not on the stack of the goroutine that waits for a
// line, because most processes write none.
type teller struct {
	to      *stderrLog
	limit   *rate.Limiter
	dropped int
}

// tellAll tells lines until there are no more for now, or reading fails.
func (t *teller) tellAll(lines *bufio.Reader) error {
	for {
		line, err := lines.ReadSlice('\n')
		t.tell(line)
		for err == bufio.ErrBufferFull { // the rest of a long line
			_, err = lines.ReadSlice('\n')
		}
		if err != nil || lines.Buffered() == 0 {
			return err
		}
	}
}

func (t *teller) tell(line []byte) {
	text := clean(line)
	if text == "" {
		return
	}
	t.to.keep(text)
	if !t.limit.Allow() {
		t.dropped++
		return
	}
	t.tellDropped()
	log, level := t.to.at()
	log.Log(context.Background(), level, "upstream stderr", "line", text)
}

// tellDropped logs how many lines were not logged.
func (t *teller) tellDropped() {
	if t.dropped > 0 {
		log, level := t.to.at()
		log.Log(context.Background(), level, "upstream stderr: lines dropped", "dropped", t.dropped)
		t.dropped = 0
	}
}

// at returns where to log, and the level.
func (l *stderrLog) at() (*slog.Logger, slog.Level) {
	l.mu.Lock()
	log, quiet := l.log, l.quiet
	l.mu.Unlock()
	if quiet() {
		return log, slog.LevelDebug
	}
	return log, slog.LevelInfo
}

func clean(line []byte) string {
	return strings.ToValidUTF8(string(bytes.TrimRight(line, " \t\r\n")), "\uFFFD")
}

func (l *stderrLog) keep(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.last) == stderrLines {
		l.last = slices.Delete(l.last, 0, 1)
	}
	l.last = append(l.last, line)
}

// tail returns the last lines.
func (l *stderrLog) tail() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.last)
}
