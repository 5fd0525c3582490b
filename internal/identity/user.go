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

// WithSocket returns a ctx for the requests that come over c, in which [UserOf] finds who
// is on its other end. It is for ConnContext of an http.Server. It asks the system nothing yet.
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

// UserOf returns the Unix user who has made the connection of a request. The system says
// that of a Unix socket (SO_PEERCRED), and it is asked once for each connection. Both are
// nil if the request came over something else, or if this system does not say it.
func UserOf(ctx context.Context) (*Identity, *Refusal) {
	ask, ok := ctx.Value(socketKey{}).(func() (*Identity, *Refusal))
	if !ok {
		return nil, nil
	}
	return ask()
}

// Unasked returns who a client is that was asked for nothing: the Unix user who has made
// its connection, else [Nobody].
func Unasked(ctx context.Context) (*Identity, *Refusal) {
	who, why := UserOf(ctx)
	if who == nil && why == nil {
		who = Nobody
	}
	return who, why
}

var errUnknownUser = &Refusal{Status: 403, Text: "the system does not tell which user this is"}

// nobodyKnows is the id of all users that the kernel knows none for.
const nobodyKnows = 1<<32 - 1

// userOf returns the user with an id, by name if there is one. All users of other user
// namespaces have the overflow id, so it says nothing of who one is.
func userOf(uid, overflow uint32) (*Identity, *Refusal) {
	if uid == overflow || uid == nobodyKnows {
		return nil, errUnknownUser
	}
	name := UserName(strconv.FormatUint(uint64(uid), 10))
	return &Identity{Principal: Principal{Kind: User, Name: name}}, nil
}

// UserName returns the name of the principal that a Unix user is, of whom the name or the
// number is given: the name if there is one.
func UserName(given string) string {
	if !isNumber(given) {
		return given
	}
	if u, err := user.LookupId(given); err == nil && !isNumber(u.Username) { // that could be the id of another
		return u.Username
	}
	return given
}

func isNumber(name string) bool { return name != "" && strings.Trim(name, "0123456789") == "" }

// overflow returns the id that the kernel shows for users whom this user namespace does
// not know.
var overflow = sync.OnceValue(func() uint32 {
	text, _ := os.ReadFile("/proc/sys/kernel/overflowuid")
	if id, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32); err == nil {
		return uint32(id)
	}
	return 65534
})
