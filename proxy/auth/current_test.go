package auth

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
)

// A rotating token is changed by a test; "" cannot be read.
type rotating struct{ value atomic.Value }

func (r *rotating) token(name string) *Token {
	return NewToken(name, func() (string, error) {
		value := r.value.Load().(string)
		if value == "" {
			return "", io.EOF
		}
		return value, nil
	}, slog.New(slog.DiscardHandler))
}

// identified returns the identity of a token.
func identified(t *testing.T, now *Current, token string) *identity.Identity {
	t.Helper()
	who, why := now.Identify(request("/mcp", token))
	if why != nil {
		t.Fatal(why)
	}
	return who
}

func wantGood(t *testing.T, now *Current, who *identity.Identity, want bool) {
	t.Helper()
	if good := now.Good(who); good == nil || (good.Err() == nil) != want {
		t.Errorf("%v: good is %v, want %v", who, good, want)
	}
}

// The proof of a static token ends when the file has another token, even before its first use, and when the file cannot
// be read for two looks.
func TestRotatedTokenIsWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var file, other rotating
		file.value.Store("one")
		other.value.Store("other")
		now := NewCurrent(&Clients{Tokens: []*Token{file.token("ci"), other.token("other")}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); now.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		ci, bystander := identified(t, now, "one"), identified(t, now, "other")
		good := now.Good(ci)
		time.Sleep(time.Hour)
		if good.Err() != nil || identified(t, now, "one") != ci {
			t.Error("a token that stays is another one")
		}
		file.value.Store("two")
		time.Sleep(2 * lookEvery)
		if good.Err() == nil {
			t.Error("a token that was replaced is still good")
		}
		wantGood(t, now, ci, false)
		two := identified(t, now, "two")
		if two.Principal != ci.Principal {
			t.Error("the next token is another principal:", two)
		}
		file.value.Store("")
		if now.Good(two).Err() != nil {
			t.Error("a file that is being written has withdrawn its token")
		}
		time.Sleep(3 * lookEvery)
		wantGood(t, now, two, false)
		wantGood(t, now, bystander, true)
		file.value.Store("two")
		wantGood(t, now, identified(t, now, "two"), true)
	})
}

// TestWithdrawnKey: what was opened with a token ends when its issuer withdraws the key. Whoever has stolen that could
// sign tokens that never expire.
func TestWithdrawnKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t, issuer)
		a.publish("k", "other")
		now := NewCurrent(&Clients{Issuers: []*jwt.Issuer{a.issuer()}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); now.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		who := identified(t, now, a.token(nil))
		time.Sleep(6 * time.Second)
		wantGood(t, now, who, true)
		a.publish("other")
		time.Sleep(6 * time.Second)
		wantGood(t, now, who, false)
		a.publish("k", "other")
		time.Sleep(6 * time.Second)
		wantGood(t, now, identified(t, now, a.token(nil)), true)
	})
}

// A reload keeps what it does not change. It ends what was opened with a removed token or issuer, and, if it adds
// tokens, what was opened without one.
func TestReplaceClients(t *testing.T) {
	a, b := newAuthority(t, "https://a.example"), newAuthority(t, "https://b.example")
	one, two := fixed("one", "token-1"), fixed("two", "token-2")
	keep, drop := a.issuer(), b.issuer()
	now := NewCurrent(nil)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); now.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })

	nobody := identified(t, now, "")
	wantGood(t, now, nobody, true)
	now.Replace(&Clients{Tokens: []*Token{one, two}, Issuers: []*jwt.Issuer{keep, drop}})
	wantGood(t, now, nobody, false)
	who := []*identity.Identity{
		identified(t, now, "token-1"), identified(t, now, a.token(nil)),
		identified(t, now, "token-2"), identified(t, now, b.token(nil)),
	}
	now.Replace(&Clients{Tokens: []*Token{one}, Issuers: []*jwt.Issuer{keep}})
	for i, id := range who {
		wantGood(t, now, id, i < 2)
	}
	if again := identified(t, now, "token-1"); again != who[0] {
		t.Error("a token that is the same is another one")
	}
	for _, token := range []string{"token-2", b.token(nil), ""} {
		if _, why := now.Identify(request("/mcp", token)); why == nil || why.Status != http.StatusUnauthorized {
			t.Errorf("a token that was removed: %v", why)
		}
	}
	now.Replace(nil)
	wantGood(t, now, who[0], false)
	wantGood(t, now, who[1], false)
	wantGood(t, now, identified(t, now, ""), true)
	if now.Asks() {
		t.Error("it asks for tokens that nobody has configured")
	}
	if good := now.Good(identity.TheOperator); good != nil {
		t.Error("the operator's proof ends:", errors.Unwrap(good.Err()))
	}
	certified := &identity.Identity{Principal: identity.Principal{Kind: identity.Certificate, Name: "alice"}}
	wantGood(t, now, certified, false)
	now.Replace(&Clients{Certificates: true})
	if good := now.Good(certified); good != nil {
		t.Error("a certificate is withdrawn:", errors.Unwrap(good.Err()))
	}
}
