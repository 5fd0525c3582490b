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

// byToken returns who has the token that a client gave, nil if nobody has. The error says
// that none of the tokens can be read. Hashes are compared, and all of them, so that not
// even the length or the place shows in the time.
func byToken(tokens []*Token, given string) (who *identity.Identity, err error) {
	got := sha256.Sum256([]byte(given))
	err = errNoToken
	for _, t := range tokens {
		token, failed := t.current()
		if failed != nil {
			continue
		}
		err = nil
		want := sha256.Sum256([]byte(token))
		if subtle.ConstantTimeCompare(want[:], got[:]) == 1 {
			who = t.who
		}
	}
	return who, err
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
		t.log.Error("token file cannot be used, clients are refused", "err", err)
	default:
		t.log.Info("token file can be used again")
	}
	return token, err
}
