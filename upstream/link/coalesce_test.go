package link

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"
)

// A gate is a writer that waits to be let through.
type gate struct {
	wrote chan []byte // what each Write wrote
	let   chan error  // lets one through
}

func (g *gate) Write(p []byte) (int, error) {
	g.wrote <- bytes.Clone(p)
	return len(p), <-g.let
}

func dataHeader(n byte) []byte { return []byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, n} }

// TestCoalescer checks that a frame goes out with one write and without delay,
// and what comes during a write with the next.
func TestCoalescer(t *testing.T) {
	g := &gate{make(chan []byte, 10), make(chan error)}
	c := newCoalescer(g)
	c.Write(dataHeader(3))
	select {
	case got := <-g.wrote:
		t.Errorf("wrote %q without its body", got)
	case <-time.After(20 * time.Millisecond): // for what must not happen
	}
	c.Write([]byte("abc"))
	if got := await(t, g.wrote); string(got) != string(dataHeader(3))+"abc" {
		t.Errorf("wrote %q", got)
	}
	var want []byte
	for range 100 {
		c.Write(dataHeader(1))
		c.Write([]byte("x"))
		want = append(append(want, dataHeader(1)...), 'x')
	}
	g.let <- nil
	if got := await(t, g.wrote); !bytes.Equal(got, want) {
		t.Errorf("wrote %d bytes, want all %d at once", len(got), len(want))
	}
	full := make(chan error, 1)
	go func() {
		for {
			if _, err := c.Write(make([]byte, 16<<10)); err != nil {
				full <- err
				return
			}
		}
	}()
	g.let <- nil
	if got := await(t, g.wrote); len(got) > coalesceSize+16<<10 {
		t.Errorf("%d bytes were waiting", len(got))
	}
	broken := errors.New("broken")
	g.let <- broken
	if err := await(t, full); !errors.Is(err, broken) {
		t.Errorf("Write: %v, want %v", err, broken)
	}
	c.Close()
	if _, err := c.Write([]byte("x")); !errors.Is(err, broken) {
		t.Errorf("Write: %v, want %v", err, broken)
	}
}

func TestCoalescerCloses(t *testing.T) {
	c := newCoalescer(io.Discard)
	c.Close()
	c.Close()
	if _, err := c.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Write: %v, want %v", err, io.ErrClosedPipe)
	}
}

// FuzzFrames checks that frames are followed however they are cut.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x03abc\x00\x02\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"), uint8(5))
	f.Add([]byte("\x00\x01\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00"), uint8(1))
	f.Fuzz(func(t *testing.T, text []byte, cut uint8) {
		var whole, parts frames
		want := whole.pass(text)
		var got error
		for rest := text; len(rest) > 0 && got == nil; {
			n := min(len(rest), int(cut)+1)
			got, rest = parts.pass(rest[:n]), rest[n:]
		}
		if got != want || want == nil && parts != whole {
			t.Fatalf("%v, %v and %+v, %+v", got, want, parts, whole)
		}
	})
}
