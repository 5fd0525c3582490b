//go:build unix

package process

import (
	"io"
	"os"
	"testing"
	"time"
)

// What a process wrote before its end is read, also by who had no time to read until the
// time to wait for it was over.
func TestPipeIsReadAfterTheDeadline(t *testing.T) {
	for range 20 {
		in, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		exited := make(chan struct{})
		close(exited)
		r, read := &pipeReader{File: in, exited: exited}, make(chan string)
		go func() {
			b := make([]byte, 10)
			n, _ := r.Read(b)
			read <- string(b[:n])
		}()
		time.Sleep(time.Millisecond) // until it waits; the outcome is the same without
		r.SetReadDeadline(time.Unix(1, 0))
		io.WriteString(out, "last words")
		if got := <-read; got != "last words" {
			t.Fatalf("read %q", got)
		}
		in.Close()
		out.Close()
	}
}
