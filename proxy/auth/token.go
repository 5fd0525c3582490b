package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"log/slog"
	"sync"
	"syscall"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
)

// A Token is a static token. All clients with it are one principal.
type Token struct {
	// Static after construction.
	principal identity.Principal
	read      func() (string, error)
	log       *slog.Logger

	mu      sync.Mutex // guards the fields below; held while the token is read
	failing bool       // as logged
	missing int        // failed looks since the last successful read
	sum     [sha256.Size]byte
	who     *identity.Identity // of clients with this token; nil if there is none
	proof   proof              // of who
}

// A proof lets its clients go on until good is done.
type proof struct {
	good     context.Context
	withdraw context.CancelFunc
}

func newProof() (p proof) {
	p.good, p.withdraw = context.WithCancel(context.Background())
	return p
}

// withdrawn is a proof that has ended.
var withdrawn = func() context.Context {
	p := newProof()
	p.withdraw()
	return p.good
}()

// NewToken returns the token of that name. It calls read for each request that may be of its clients,
// because tokens are rotated.
func NewToken(name string, read func() (string, error), log *slog.Logger) *Token {
	return &Token{principal: identity.Principal{Kind: identity.Token, Name: name}, read: read, log: log}
}

// byToken returns the identity of a given token. It is refused with errWrong if no token matches, and with errUnknown
// if it may be one that cannot be read now, or if no token can be read. The token that was the given one when it was
// last read is read first, so that a request does not look at the files of all others. Until one is found all are
// compared, by hash, so that the time of a wrong one tells neither length nor place.
func byToken(tokens []*Token, given string) (who *identity.Identity, why *identity.Refusal) {
	got := hash(given)
	for _, t := range tokens {
		if !t.was(got) {
			continue
		}
		if want, has, err := t.current(); err == nil && subtle.ConstantTimeCompare(want[:], got[:]) == 1 {
			return has, nil
		}
	}
	read, passing := false, false
	for _, t := range tokens {
		want, has, err := t.current()
		if err != nil {
			passing = passing || isPassing(err)
			continue
		}
		read = true
		if subtle.ConstantTimeCompare(want[:], got[:]) == 1 && who == nil {
			who = has
		}
	}
	switch {
	case who != nil:
		return who, nil
	case passing || !read:
		return nil, errUnknown
	}
	return nil, errWrong
}

// isPassing reports whether err says nothing of the token's file, as when the process has too many files open.
func isPassing(err error) bool {
	no, ok := errors.AsType[syscall.Errno](err)
	return ok && no.Temporary()
}

func hash(token string) [sha256.Size]byte {
	var room [2048]byte // saves the allocation of a conversion
	return sha256.Sum256(append(room[:0], token...))
}

var errNoToken = errors.New("no token to compare with")

// was reports whether the token had a hash when it was last read.
func (t *Token) was(sum [sha256.Size]byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.who != nil && subtle.ConstantTimeCompare(t.sum[:], sum[:]) == 1
}

// current reads the token and returns its hash and identity. A new token withdraws the proof of the old one's clients.
// The first failure to read is logged, and the first success after failures.
func (t *Token) current() (sum [sha256.Size]byte, who *identity.Identity, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	token, err := t.read()
	if err == nil && token == "" {
		err = errNoToken
	}
	t.logLocked(err)
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

func (t *Token) logLocked(err error) {
	switch bad := err != nil; {
	case t.failing == bad:
	case bad:
		t.log.Error("cannot use a token file; refusing its clients", "token", t.principal.Name, "err", err)
	default:
		t.log.Info("a token file can be used again", "token", t.principal.Name)
	}
	t.failing = err != nil
}

// look finds out whether the token was replaced or withdrawn. A token counts as withdrawn if it cannot be read twice in
// a row: the first time somebody may have been writing it.
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

// withdraw ends what clients have opened with the token.
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

// good returns the ctx of a client's proof, nil if the client does not have the current token.
func (t *Token) good(who *identity.Identity) context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.who != who {
		return nil
	}
	return t.proof.good
}
