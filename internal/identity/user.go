package identity

import (
	"context"
	"net"
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
)

// WithSocket returns a ctx in which [UserOf] finds the user at the other end of c. It is for ConnContext of an
// http.Server. The system is asked at the first use.
func WithSocket(ctx context.Context, c net.Conn) context.Context {
	socket, ok := c.(*net.UnixConn)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, socketKey{}, sync.OnceValues(func() (*Identity, *Refusal) {
		uid, ok, err := peerOf(socket)
		switch {
		case err != nil:
			return nil, errUnknownUser
		case !ok:
			return nil, nil
		}
		return userOf(uid, overflow())
	}))
}

type socketKey struct{}

// UserOf returns the Unix user who has opened the connection of a request. The system knows that of a Unix socket
// (SO_PEERCRED), and is asked once for each connection. Both results are nil for other connections, and on systems that
// do not know it.
func UserOf(ctx context.Context) (*Identity, *Refusal) {
	ask, ok := ctx.Value(socketKey{}).(func() (*Identity, *Refusal))
	if !ok {
		return nil, nil
	}
	return ask()
}

// Unasked returns the identity of a client that was not asked for credentials: the Unix user who has opened the
// connection, else [Nobody].
func Unasked(ctx context.Context) (*Identity, *Refusal) {
	who, why := UserOf(ctx)
	if who == nil && why == nil {
		who = Nobody
	}
	return who, why
}

var errUnknownUser = &Refusal{Status: 403, Text: "the system does not know the user at the other end of the socket"}

// unknownUser is the id of users that the kernel does not know.
const unknownUser = 1<<32 - 1

// userOf returns the user with an id, by name if there is one. It refuses the overflow id, which all users of other
// namespaces share.
func userOf(uid, overflow uint32) (*Identity, *Refusal) {
	if uid == overflow || uid == unknownUser {
		return nil, errUnknownUser
	}
	name := UserName(strconv.FormatUint(uint64(uid), 10))
	return &Identity{Principal: Principal{Kind: User, Name: name}}, nil
}

// UserName returns the name of a Unix user's principal, given the user's name or number: the name if there is one.
func UserName(given string) string {
	if !isNumber(given) {
		return given
	}
	if u, err := user.LookupId(given); err == nil && !isNumber(u.Username) { // a number could be the id of another user
		return u.Username
	}
	return given
}

func isNumber(name string) bool { return name != "" && strings.Trim(name, "0123456789") == "" }

// overflow returns the id that the kernel shows for users outside this user namespace.
var overflow = sync.OnceValue(func() uint32 {
	text, _ := os.ReadFile("/proc/sys/kernel/overflowuid")
	if id, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32); err == nil {
		return uint32(id)
	}
	return 65534
})
