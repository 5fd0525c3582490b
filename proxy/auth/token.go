package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"sync"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// A Token is a static token: all who have it are one principal.
type Token struct {
	// Static after construction.
	principal identity.Principal
	read      func() (string, error)
	log       *slog.Logger

	mu      sync.Mutex // guards the fields below; held while the token is read
	failing bool       // as the log was told
	missing int        // how often look failed to read it since it was last read
	sum     [sha256.Size]byte
	who     *identity.Identity // of clients with that sum; nil if there is no token
	proof   proof              // of who
}

// A proof is how long clients may go on that have proved who they are: until good is done.
type proof struct {
	good     context.Context
	withdraw context.CancelFunc
}

func newProof() (p proof) {
	p.good, p.withdraw = context.WithCancel(context.Background())
	return p
}

// withdrawn is what is not good any more.
var withdrawn = func() context.Context {
	p := newProof()
	p.withdraw()
	return p.good
}()

// NewToken returns the token of that name. Read is called for each request, since tokens
// are rotated.
func NewToken(name string, read func() (string, error), log *slog.Logger) *Token {
	return &Token{principal: identity.Principal{Kind: identity.Token, Name: name}, read: read, log: log}
}

// byToken returns who has the token that a client gave. It is refused with errWrong if
// nobody has, and with errUnknown if none of the tokens can be read: no token can then be
// told from a wrong one. Hashes are compared, and all of them, so that not even the length
// or the place shows in the time.
func byToken(tokens []*Token, given string) (who *identity.Identity, why *identity.Refusal) {
	got := hash(given)
	why = errUnknown
	for _, t := range tokens {
		want, has, err := t.current()
		if err != nil {
			continue
		}
		if why == errUnknown {
			why = errWrong
		}
		if subtle.ConstantTimeCompare(want[:], got[:]) == 1 && who == nil {
			who, why = has, nil
		}
	}
	return who, why
}

func hash(token string) [sha256.Size]byte {
	var room [2048]byte // for most tokens: a conversion would allocate
	return sha256.Sum256(append(room[:0], token...))
}

var errNoToken = errors.New("no token to compare with")

// current reads the token and returns its hash, and who has it. A token that differs from
// the last one withdraws the proof of all who had that. A line in the log says when reading
// begins to fail and when it is over.
func (t *Token) current() (sum [sha256.Size]byte, who *identity.Identity, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	token, err := t.read()
	if err == nil && token == "" {
		err = errNoToken
	}
	t.tellLocked(err)
	if err != nil {
		return sum, nil, err
	}
	t.missing = 0
	if sum = hash(token); t.who == nil || sum != t.sum {
		t.withdrawLocked()
		t.sum, t.who, t.proof = sum, &identity.Identity{Principal: t.principal}, newProof()
	}
	return sum, t.who, nil
}

func (t *Token) tellLocked(err error) {
	switch bad := err != nil; {
	case t.failing == bad:
	case bad:
		t.log.Error("token file cannot be used, clients are refused", "token", t.principal.Name, "err", err)
	default:
		t.log.Info("token file can be used again", "token", t.principal.Name)
	}
	t.failing = err != nil
}

// look finds out whether the token was replaced or withdrawn. One that cannot be read twice
// in a row was withdrawn: in between, somebody may have been writing it anew.
func (t *Token) look() {
	if _, _, err := t.current(); err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.missing++; t.missing > 1 {
		t.withdrawLocked()
	}
}

// withdraw ends what was opened with the token.
func (t *Token) withdraw() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.withdrawLocked()
}

func (t *Token) withdrawLocked() {
	if t.who != nil {
		t.who = nil
		t.proof.withdraw()
	}
}

// good returns how long who may go on; nil if it is not who has the token now.
func (t *Token) good(who *identity.Identity) context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.who != who {
		return nil
	}
	return t.proof.good
}
