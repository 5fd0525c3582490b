package link

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"
)

// TestRingBytes moves more than a ring holds, in pieces of all sizes.
func TestRingBytes(t *testing.T) {
	a, b := Ring()
	sent := make([]byte, 5*ringSize+17)
	for i := range sent {
		sent[i] = byte(rand.Uint32())
	}
	go func() {
		defer a.Close()
		for rest := sent; len(rest) > 0; {
			n := min(1+rand.IntN(2*ringSize), len(rest))
			if k, err := a.Write(rest[:n]); k != n || err != nil {
				t.Errorf("Write of %d: %d, %v", n, k, err)
				return
			}
			rest = rest[n:]
		}
	}()
	var got bytes.Buffer
	for {
		p := make([]byte, 1+rand.IntN(ringSize))
		n, err := b.Read(p)
		got.Write(p[:n])
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got.Bytes(), sent) {
		t.Errorf("%d bytes arrived changed, of %d", got.Len(), len(sent))
	}
	b.Close()
}

func TestRingClose(t *testing.T) {
	read := func(c net.Conn) error { _, err := c.Read(make([]byte, 1)); return err }
	fill := func(c net.Conn) error { _, err := c.Write(make([]byte, 2*ringSize)); return err }
	tests := []struct {
		name  string
		block func(net.Conn) error
		own   bool // the side that is blocked closes
		want  error
	}{
		{"own close, read", read, true, io.ErrClosedPipe},
		{"own close, write", fill, true, io.ErrClosedPipe},
		{"other's close, read", read, false, io.EOF},
		{"other's close, write", fill, false, io.ErrClosedPipe},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := Ring()
			blocked := make(chan error, 1)
			go func() { blocked <- tt.block(a) }()
			if tt.own {
				a.Close()
			} else {
				b.Close()
			}
			if err := await(t, blocked); err != tt.want {
				t.Errorf("blocked call returned %v, want %v", err, tt.want)
			}
			if err := tt.block(a); err != tt.want {
				t.Errorf("later call returned %v, want %v", err, tt.want)
			}
			a.Close()
			b.Close()
			b.Close()
		})
	}
}

// TestRingIsAConn checks the rest of net.Conn, which yamux logs but never needs.
func TestRingIsAConn(t *testing.T) {
	a, b := Ring()
	defer b.Close()
	defer a.Close()
	if a.LocalAddr().String() != "ring" || a.RemoteAddr().Network() != "ring" {
		t.Errorf("addresses %v and %v", a.LocalAddr(), a.RemoteAddr())
	}
	if err := errors.Join(a.SetDeadline(time.Now()), a.SetReadDeadline(time.Now()), a.SetWriteDeadline(time.Now())); !errors.Is(err, os.ErrNoDeadline) {
		t.Errorf("deadlines: %v, want ErrNoDeadline", err)
	}
	if n, err := a.Write(nil); n != 0 || err != nil {
		t.Errorf("empty Write: %d, %v", n, err)
	}
}
