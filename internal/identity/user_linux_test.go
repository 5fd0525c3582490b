package identity

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// accepted returns both ends of a connection.
func accepted(t *testing.T, network, address string) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if client, err = net.Dial(network, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

// TestUserOfASocket: who connects to a Unix socket is known; the system is asked once.
func TestUserOfASocket(t *testing.T) {
	if os.Getuid() == int(overflow()) {
		t.Skip("this user looks as those of other namespaces do")
	}
	_, socket := accepted(t, "unix", filepath.Join(t.TempDir(), "s"))
	ctx := WithSocket(t.Context(), socket)
	want, _ := userOf(uint32(os.Getuid()), overflow())
	who, refusal := UserOf(ctx)
	if refusal != nil || who.Principal != want.Principal || who.Kind != User {
		t.Fatalf("got %v, %v, want %v", who, refusal, want)
	}
	socket.Close()
	if again, _ := UserOf(ctx); again != who {
		t.Error("the system was asked again")
	}
}

// TestNoUser: over TCP there is none, and of a connection that is gone nobody knows.
func TestNoUser(t *testing.T) {
	_, tcp := accepted(t, "tcp", "127.0.0.1:0")
	for _, ctx := range []context.Context{t.Context(), WithSocket(t.Context(), tcp)} {
		if who, refusal := UserOf(ctx); who != nil || refusal != nil {
			t.Errorf("got %v, %v", who, refusal)
		}
	}
	_, socket := accepted(t, "unix", filepath.Join(t.TempDir(), "s"))
	socket.Close()
	if who, refusal := UserOf(WithSocket(t.Context(), socket)); who != nil || refusal == nil || refusal.Status != 403 {
		t.Errorf("gone: got %v, %v", who, refusal)
	}
}

// TestUsers: a user without a name goes by number, and the overflow id is nobody.
func TestUsers(t *testing.T) {
	const unnamed = 1<<31 - 7
	if who, refusal := userOf(unnamed, 65534); refusal != nil || who.String() != "user:"+strconv.Itoa(unnamed) {
		t.Errorf("got %v, %v", who, refusal)
	}
	for _, uid := range []uint32{65534, unknownUser} {
		if who, refusal := userOf(uid, 65534); who != nil || refusal == nil || refusal.Status != 403 {
			t.Errorf("%d: got %v, %v", uid, who, refusal)
		}
	}
	if isNumber("alice") || isNumber("a1") || !isNumber("1000") {
		t.Error("a name that is a number could be the id of another")
	}
}
