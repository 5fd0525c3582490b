package cluster

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"
)

// carriersOf returns those of a replica whose key file has these keys.
func carriersOf(t *testing.T, instance string, secrets ...byte) (*carriers, func(secrets ...byte)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys")
	write := func(secrets ...byte) {
		var lines []string
		for _, b := range secrets {
			lines = append(lines, hexOf(b))
		}
		writeKeys(t, file, lines...)
	}
	write(secrets...)
	k, err := newKeys(file, instance)
	if err != nil {
		t.Fatal(err)
	}
	return &carriers{keys: k, open: make(map[*carrier]struct{})}, write
}

// connect makes TLS between two replicas. Its errors are those of the handshakes, or of the first byte.
func connect(t *testing.T, from, to *carriers, want string) (a, b *tls.Conn, aErr, bErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	a, b = from.client(conn, want).(*tls.Conn), to.server(accepted).(*tls.Conn)
	t.Cleanup(func() { a.NetConn().Close(); b.NetConn().Close() })
	for _, c := range []net.Conn{a, b} {
		c.SetDeadline(time.Now().Add(20 * time.Second))
	}
	done := make(chan error, 1)
	go func() {
		_, err := b.Write([]byte("x")) // handshake first
		if err != nil {
			b.NetConn().Close()
		}
		done <- err
	}()
	_, aErr = io.ReadFull(a, make([]byte, 1))
	if aErr != nil {
		a.NetConn().Close()
	}
	return a, b, aErr, <-done
}

func TestHandshakes(t *testing.T) {
	for name, test := range map[string]struct {
		from, to []byte
		wrong    bool // the dialler wants another instance
		ok       bool
	}{
		"the same key":     {from: []byte{1}, to: []byte{1}, ok: true},
		"one with the new": {from: []byte{1}, to: []byte{1, 2}, ok: true},
		"one signs anew":   {from: []byte{1, 2}, to: []byte{2, 1}, ok: true},
		"one without":      {from: []byte{2, 1}, to: []byte{2}, ok: true},
		"another key":      {from: []byte{1}, to: []byte{2}},
		"unknown client":   {from: []byte{3, 1}, to: []byte{1}},
		"unknown server":   {from: []byte{1}, to: []byte{3, 1}},
		"another instance": {from: []byte{1}, to: []byte{1}, wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			from, _ := carriersOf(t, newInstance(), test.from...)
			to, _ := carriersOf(t, newInstance(), test.to...)
			want := to.keys.instance
			if test.wrong {
				want = newInstance()
			}
			_, _, aErr, bErr := connect(t, from, to, want)
			if (aErr == nil && bErr == nil) != test.ok || (aErr == nil) != (bErr == nil) && aErr == nil {
				t.Errorf("errors %v and %v, want success: %v", aErr, bErr, test.ok)
			}
			if !test.ok && len(from.open)+len(to.open) != 0 {
				t.Error("connections are left")
			}
		})
	}
}

// Who has no certificate of ours gets no further than the handshake, whatever else it is.
func TestStrangersAreRefused(t *testing.T) {
	ours, _ := carriersOf(t, newInstance(), 1)
	for name, config := range map[string]*tls.Config{
		"without a certificate": {InsecureSkipVerify: true},
		"with TLS 1.2":          {InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{ours.keys.current.Load().own}},
	} {
		near, far := net.Pipe()
		stranger := tls.Client(near, config)
		go func() {
			_, _ = stranger.Read(make([]byte, 1))
			near.Close()
		}()
		if err := ours.server(far).(*tls.Conn).Handshake(); err == nil {
			t.Errorf("a stranger %s got in", name)
		}
		far.Close()
	}
}

// A key that is taken away ends the connections of those that it certified, and of nobody else.
func TestWithdrawnKeys(t *testing.T) {
	old, _ := carriersOf(t, newInstance(), 1, 2)
	signer, _ := carriersOf(t, newInstance(), 2, 1)
	us, write := carriersOf(t, newInstance(), 2, 1)
	atOld, fromUs, err1, err2 := connect(t, old, us, us.keys.instance)
	_, stays, err3, err4 := connect(t, signer, us, us.keys.instance)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		t.Fatal(err)
	}
	write(2)
	if changed, err := us.keys.refresh(); !changed || err != nil {
		t.Fatal(changed, err)
	}
	us.withdraw()
	if _, err := atOld.Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlived its key")
	}
	if _, err := fromUs.Write([]byte("x")); err == nil {
		t.Error("our end outlived its key")
	}
	if _, err := stays.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	us.died(signer.keys.instance)
	if _, err := stays.Write([]byte("x")); err == nil {
		t.Error("a connection outlived its member")
	}
}
