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
	log   *slog.Logger
	quiet func() bool // reports whether to log at level debug

	mu   sync.Mutex // guards last
	last []string
}

// readFrom reads r to its end, in constant memory.
func (l *stderrLog) readFrom(r io.Reader) {
	limit := rate.NewLimiter(stderrRate, stderrBurst)
	lines := bufio.NewReaderSize(r, stderrLine)
	dropped := 0
	tell := func() {
		if dropped > 0 {
			l.log.Log(context.Background(), l.level(), "upstream stderr: lines dropped", "dropped", dropped)
		}
		dropped = 0
	}
	defer func() { tell() }()
	for {
		line, err := lines.ReadSlice('\n')
		if text := clean(line); text != "" {
			l.keep(text)
			if limit.Allow() {
				tell()
				l.log.Log(context.Background(), l.level(), "upstream stderr", "line", text)
			} else {
				dropped++
			}
		}
		for err == bufio.ErrBufferFull { // the rest of a long line
			_, err = lines.ReadSlice('\n')
		}
		if err != nil {
			return
		}
	}
}

func (l *stderrLog) level() slog.Level {
	if l.quiet() {
		return slog.LevelDebug
	}
	return slog.LevelInfo
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
