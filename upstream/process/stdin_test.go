//go:build unix

package process

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"
)

// stdinPipe returns a stdin and its other end.
func stdinPipe(t *testing.T, timeout time.Duration, failed func(error)) (*stdin, *os.File, *sync.WaitGroup) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	s := newStdin(w, timeout, &wg, failed)
	t.Cleanup(func() {
		s.abort()
		r.Close()
		wg.Wait()
	})
	return s, r, &wg
}

func TestStdinKeepsOrderThroughTheBacklog(t *testing.T) {
	s, r, _ := stdinPipe(t, time.Hour, func(err error) { t.Error(err) })
	const lines = 20_000
	go func() {
		pad := bytes.Repeat([]byte{'p'}, 300)
		for i := range lines {
			s.write(fmt.Appendf(nil, "%d %s\n", i, pad), func() {})
			if i%5000 == 0 {
				time.Sleep(5 * time.Millisecond) // lets the backlog drain: both ways are taken
			}
		}
		s.finish(func() []byte { return []byte("end\n") })
	}()
	in := bufio.NewScanner(r)
	for i := range lines {
		var n int
		if in.Scan(); true {
			fmt.Sscan(in.Text(), &n)
		}
		if n != i {
			t.Fatalf("line %d is %d", i, n)
		}
	}
	if !in.Scan() || in.Text() != "end" || in.Scan() {
		t.Errorf("the end is %q", in.Text())
	}
}

func TestStdinFinishIsNotHeldUp(t *testing.T) {
	s, r, wg := stdinPipe(t, time.Hour, func(err error) { t.Error(err) })
	big := bytes.Repeat([]byte{'x'}, 2*maxBacklog)
	s.write(big, func() {})
	blocked, accepted := make(chan struct{}), false
	go func() {
		s.write([]byte("dropped"), func() { accepted = true }) // waits for room, and then there is no more need
		close(blocked)
	}()
	var known bool
	s.finish(func() []byte { known = accepted; return []byte("last") })
	<-blocked
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got[:len(big)], big) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	want := "last" // and nothing that finish did not know of
	if known {
		want = "droppedlast"
	}
	if rest := string(got[len(big):]); rest != want {
		t.Errorf("ends with %q, want %q", rest, want)
	}
	wg.Wait()
}

func TestStdinTellsAFailureOnce(t *testing.T) {
	failed := make(chan error, 2)
	s, r, wg := stdinPipe(t, time.Hour, func(err error) { failed <- err })
	r.Close()
	s.write([]byte("x"), func() {})
	if err := <-failed; err == nil {
		t.Error("no error")
	}
	s.write([]byte("x"), func() {})
	wg.Wait()
	if len(failed) > 0 {
		t.Error(<-failed)
	}
}

func TestStdinTimesOutWithoutProgress(t *testing.T) {
	failed := make(chan error, 2)
	s, _, _ := stdinPipe(t, 20*time.Millisecond, func(err error) { failed <- err })
	s.write(make([]byte, 1<<20), func() {})
	if err := <-failed; err != os.ErrDeadlineExceeded {
		t.Error(err)
	}
}
