package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// A Token is a static token: all who have it are one principal.
type Token struct {
	// Static after construction.
	who  *identity.Identity
	read func() (string, error)
	log  *slog.Logger

	failing atomic.Bool // as the log was told
}

// NewToken returns the token of that name. Read is called for each request, since tokens
// are rotated.
func NewToken(name string, read func() (string, error), log *slog.Logger) *Token {
	who := &identity.Identity{Principal: identity.Principal{Kind: identity.Token, Name: name}}
	return &Token{who: who, read: read, log: log}
}

// byToken returns who has the token that a client gave. It is refused with errWrong if
// nobody has, and with errUnknown if none of the tokens can be read: no token can then be
// told from a wrong one. Hashes are compared, and all of them, so that not even the length
// or the place shows in the time.
func byToken(tokens []*Token, given string) (who *identity.Identity, why *identity.Refusal) {
	got := hash(given)
	why = errUnknown
	for _, t := range tokens {
		token, err := t.current()
		if err != nil {
			continue
		}
		if why == errUnknown {
			why = errWrong
		}
		want := hash(token)
		if subtle.ConstantTimeCompare(want[:], got[:]) == 1 && who == nil {
			who, why = t.who, nil
		}
	}
	return who, why
}

func hash(token string) [sha256.Size]byte {
	var room [2048]byte // for most tokens: a conversion would allocate
	return sha256.Sum256(append(room[:0], token...))
}

var errNoToken = errors.New("no token to compare with")

// current reads the token. A line in the log says when that begins to fail and when it is
// over.
func (t *Token) current() (string, error) {
	token, err := t.read()
	if err == nil && token == "" {
		err = errNoToken
	}
	switch bad := err != nil; {
	case t.failing.Swap(bad) == bad:
	case bad:
		t.log.Error("token file cannot be used, clients are refused", "token", t.who.Name, "err", err)
	default:
		t.log.Info("token file can be used again", "token", t.who.Name)
	}
	return token, err
}
