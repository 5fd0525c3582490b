package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal returns both ends of a new terminal of that size.
func terminal(t *testing.T, wide, high uint16) (near, far *os.File) {
	t.Helper()
	near, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	t.Cleanup(func() { near.Close() })
	raw, err := near.SyscallConn() // with Fd, Close would wait for a Read
	if err != nil {
		t.Fatal(err)
	}
	var n int
	failed := raw.Control(func(at uintptr) {
		fd := int(at)
		n, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		if err == nil {
			err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
		}
		if err == nil {
			err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: high, Col: wide})
		}
	})
	if err = errors.Join(failed, err); err == nil {
		far, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return near, far
}

// A screen keeps what is drawn on a terminal.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) read(from *os.File, done chan<- struct{}) {
	defer close(done)
	part := make([]byte, 4096)
	for {
		n, err := from.Read(part)
		s.mu.Lock()
		s.text.Write(part[:n])
		s.mu.Unlock()
		if err != nil { // the other end is closed
			return
		}
	}
}

func (s *screen) has(part string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.text.String(), part)
}

// top draws the calls in flight, fits the terminal, outlives the process that it watches, and
// restores the terminal after q, ^C and SIGTERM.
func TestTop(t *testing.T) {
	t.Parallel()
	for name, quit := range map[string]func(near *os.File, top *os.Process){
		"q":       func(near *os.File, _ *os.Process) { io.WriteString(near, "xq") },
		"^C":      func(near *os.File, _ *os.Process) { io.WriteString(near, "\x03") },
		"SIGTERM": func(_ *os.File, top *os.Process) { top.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := shortDir(t)
			env := []string{"XDG_RUNTIME_DIR=" + dir}
			p, s := serving(t, env...)
			c := s.connect()
			c.call(1, "hang")

			near, far := terminal(t, 60, 20)
			before, err := unix.IoctlGetTermios(int(far.Fd()), unix.TCGETS)
			if err != nil {
				t.Fatal(err)
			}
			top := exec.Command("mcp-proxy", "top")
			top.Env = append(os.Environ(), env...)
			top.Stdin, top.Stdout, top.Stderr = far, far, far
			if err := top.Start(); err != nil {
				t.Fatal(err)
			}
			var drawn screen
			done := make(chan struct{})
			go drawn.read(near, done)
			eventually(t, "a call", func() bool { return drawn.has("tools/call hang") && drawn.has("1 in flight") })
			if drawn.has("DETAIL") || !drawn.has("…") {
				t.Errorf("it is wider than the terminal: %q", drawn.text.String())
			}
			p.cmd.Process.Kill()
			eventually(t, "a word about the end", func() bool { return drawn.has("no answer") })
			quit(near, top.Process)
			ended := make(chan error, 1)
			go func() { ended <- top.Wait() }()
			select {
			case err := <-ended:
				if exit, failed := errors.AsType[*exec.ExitError](err); failed {
					t.Errorf("it ended with %v", exit)
				}
			case <-time.After(10 * time.Second):
				top.Process.Kill()
				t.Fatal("it does not end")
			}
			after, err := unix.IoctlGetTermios(int(far.Fd()), unix.TCGETS)
			if err != nil || *after != *before {
				t.Errorf("the terminal is not as it was: %v", err)
			}
			far.Close()
			<-done
			if !strings.HasPrefix(drawn.text.String(), enterScreen) || !strings.HasSuffix(drawn.text.String(), leaveScreen) {
				t.Errorf("the screen is left behind: %q", drawn.text.String())
			}
		})
	}
}
