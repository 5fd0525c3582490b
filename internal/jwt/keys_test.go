package jwt

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

func signedWith(kid string) string {
	return sign(ecKey, jose.ES256, object{"alg": "ES256", "kid": kid}, good(nil))
}

func expect(t *testing.T, i *Issuer, token string, want error, when string) *Token {
	t.Helper()
	got, err := Verify(t.Context(), []*Issuer{i}, here, token)
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", when, err, want)
	}
	return got
}

// TestBogusKeyIDs: a thousand clients with unknown key ids or wrong signatures cost one fetch a minute. Tokens with a
// known key do not wait for it.
func TestBogusKeyIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := threeKeys()
		i := start(t, s, jwksURL, "", io.Discard)
		expect(t, i, signedWith("e"), nil, "a known key")
		s.set(func() { s.slow = time.Second })
		flood := func() {
			var wg sync.WaitGroup
			for n := range 1000 {
				wg.Go(func() { expect(t, i, signedWith(fmt.Sprint("bogus", n)), UnknownKey, "a bogus key") })
			}
			for range 100 {
				wg.Go(func() {
					expect(t, i, sign(otherEC, jose.ES256, object{"alg": "ES256", "kid": "e"}, good(nil)), BadSignature, "a forgery")
				})
			}
			at := time.Now()
			expect(t, i, signedWith("e"), nil, "a known key meanwhile")
			if time.Since(at) > 0 {
				t.Error("a known key waits for an unknown one")
			}
			wg.Wait()
		}
		for minute := range 3 {
			flood()
			time.Sleep(50 * time.Second)
			flood()
			if got, want := s.count(), 2+minute; got != want {
				t.Errorf("minute %d: %d fetches, want %d", minute, got, want)
			}
			time.Sleep(11 * time.Second)
		}
	})
}

// TestMissAfterFetch: a token whose key comes while it is verified is verified again, without another fetch. That fetch
// would bring nothing, and the tokens of the next rotation would wait a minute for theirs.
func TestMissAfterFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := threeKeys()
		i := start(t, s, jwksURL, "", io.Discard)
		expect(t, i, signedWith("e"), nil, "a known key")
		rotate := func(kid string) {
			s.set(func() { s.at[jwksURL] = jwks(map[string]crypto.Signer{kid: ecKey}) })
		}
		rotate("second")
		h := header{Algorithm: jose.ES256, KeyID: "second"}
		found, ended, err := i.Keys.find(h)
		if len(found) > 0 || err != nil {
			t.Fatalf("%d keys, %v", len(found), err)
		}
		expect(t, i, signedWith("second"), nil, "another token with the second key")
		select {
		case <-i.Keys.miss(ended):
		default:
			t.Error("the first token waits for another fetch")
		}
		if found, _, _ := i.Keys.find(h); len(found) != 1 {
			t.Errorf("%d keys for the first token", len(found))
		}
		synctest.Wait()
		rotate("third")
		expect(t, i, signedWith("third"), nil, "the next rotation")
	})
}

// TestCallerLeaves: a fetch continues when its caller leaves.
func TestCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := threeKeys()
		i := start(t, s, jwksURL, "", io.Discard)
		expect(t, i, signedWith("e"), nil, "a known key")
		s.set(func() { s.slow, s.at[jwksURL] = time.Second, jwks(map[string]crypto.Signer{"new": ecKey}) })
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := Verify(ctx, []*Issuer{i}, here, signedWith("new")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		expect(t, i, signedWith("new"), nil, "another caller")
		if s.count() != 2 {
			t.Errorf("%d fetches", s.count())
		}
	})
}

// TestRotation: a new key is accepted as soon as a token uses it. A withdrawn key, and its tokens, stay valid until the
// next refresh.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{at: map[string]string{jwksURL: jwks(map[string]crypto.Signer{"a": ecKey})}}
		i := start(t, s, jwksURL, "", io.Discard)
		a := expect(t, i, signedWith("a"), nil, "before")
		s.set(func() { s.at[jwksURL] = jwks(map[string]crypto.Signer{"a": ecKey, "b": ecKey}) })
		var wg sync.WaitGroup
		for n := range 100 {
			wg.Go(func() { expect(t, i, signedWith("b"), nil, fmt.Sprint("new key ", n)) })
		}
		wg.Wait()
		if again := expect(t, i, signedWith("a"), nil, "old key"); a.Key.Good().Err() != nil || again.Key != a.Key {
			t.Error("a key that stays is another after a fetch")
		}
		s.set(func() { s.at[jwksURL] = jwks(map[string]crypto.Signer{"b": ecKey}) })
		time.Sleep(refreshEvery)
		synctest.Wait()
		if a.Key.Good().Err() == nil {
			t.Error("a withdrawn key is still good")
		}
		expect(t, i, signedWith("a"), UnknownKey, "withdrawn")
		expect(t, i, signedWith("b"), nil, "the key that is left")

		// Rotations may follow each other at once; each costs a fetch.
		time.Sleep(missEvery) // the withdrawn key caused a fetch without result
		fetches := s.count()
		for n := range 5 {
			kid := fmt.Sprint("n", n)
			s.set(func() { s.at[jwksURL] = jwks(map[string]crypto.Signer{"b": ecKey, kid: ecKey}) })
			expect(t, i, signedWith(kid), nil, kid)
		}
		if n := s.count() - fetches; n != 5 {
			t.Errorf("%d fetches for 5 rotations", n)
		}

		// Another key with the same id is accepted as soon as a token uses it.
		b := expect(t, i, signedWith("b"), nil, "b")
		s.set(func() { s.at[jwksURL] = jwks(map[string]crypto.Signer{"b": otherEC}) })
		expect(t, i, sign(otherEC, jose.ES256, object{"alg": "ES256", "kid": "b"}, good(nil)), nil, "new key under the same id")
		expect(t, i, signedWith("b"), BadSignature, "replaced")
		if b.Key.Good().Err() == nil {
			t.Error("a replaced key is still good")
		}
		s.set(func() { s.at[jwksURL] = `{"keys":[]}` })
		time.Sleep(refreshEvery + missEvery)
		expect(t, i, signedWith("b"), UnknownKey, "all withdrawn")
	})
}

// TestRotationDuringFetch: a key that was published after a fetch began is found by another fetch.
func TestRotationDuringFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{at: map[string]string{jwksURL: jwks(map[string]crypto.Signer{"a": ecKey})}, slow: time.Second}
		i := start(t, s, jwksURL, "", io.Discard)
		time.Sleep(time.Second / 2)
		s.set(func() { s.at[jwksURL] = jwks(map[string]crypto.Signer{"b": ecKey}) })
		expect(t, i, signedWith("b"), nil, "while the first fetch is under way")
	})
}

// TestServerDown: known keys stay valid, and the log says it once. Without known keys no token can be verified.
func TestServerDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := threeKeys()
		s.down = true
		i := start(t, s, jwksURL, "", &log)
		for range 5 {
			expect(t, i, signedWith("e"), ErrUnavailable, "down from the beginning")
		}
		if s.count() != 1 {
			t.Errorf("%d fetches by those who ask", s.count())
		}
		s.set(func() { s.down = false })
		time.Sleep(2 * time.Second)
		expect(t, i, signedWith("e"), nil, "there at last")
		s.set(func() { s.down, s.fetches = true, 0 })
		time.Sleep(time.Hour)
		expect(t, i, signedWith("e"), nil, "down for an hour")
		expect(t, i, signedWith("x"), UnknownKey, "an unknown key")
		if n := s.count(); n < 50 || n > 90 {
			t.Errorf("%d attempts in an hour", n)
		}
		s.set(func() { s.down = false })
		time.Sleep(time.Minute)
		synctest.Wait()
		text := log.String()
		if strings.Count(text, "cannot read") != 2 || strings.Count(text, "can be read again") != 2 || strings.Count(text, "\n") != 4 {
			t.Errorf("the log:\n%s", text)
		}
		if !strings.Contains(text, "known=0") || !strings.Contains(text, "known=3") || !strings.Contains(text, issuerName) {
			t.Errorf("the log:\n%s", text)
		}
	})
}

// TestServerHangs: a fetch has a time-out.
func TestServerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := threeKeys()
		s.slow = time.Hour
		i := start(t, s, jwksURL, "", io.Discard)
		at := time.Now()
		expect(t, i, signedWith("e"), ErrUnavailable, "it hangs")
		if d := time.Since(at); d != fetchTime {
			t.Errorf("after %v", d)
		}
	})
}

// TestNotRunning: before and after Run, Verify does not wait for ever.
func TestNotRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := NewKeys("", jwksURL, "", slog.New(slog.DiscardHandler))
		k.client.Transport = threeKeys()
		i := &Issuer{Name: issuerName, Algorithms: []string{"ES256"}, Keys: k}
		expect(t, i, signedWith("e"), ErrUnavailable, "before")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		k.Run(ctx)
		at := time.Now()
		expect(t, i, signedWith("e"), ErrUnavailable, "after")
		if time.Since(at) > 0 {
			t.Error("it was waited for a fetch that never comes")
		}
	})
}

// TestSources: where keys come from, and what is refused.
func TestSources(t *testing.T) {
	const (
		oauth = "https://as.example/.well-known/oauth-authorization-server"
		oidc  = "https://as.example/.well-known/openid-configuration"
	)
	metadata := func(issuer, keys string) string {
		return string(must(json.Marshal(map[string]any{"issuer": issuer, "jwks_uri": keys})))
	}
	set := jwks(map[string]crypto.Signer{"e": ecKey})
	tests := []struct {
		name string
		at   map[string]string
		url  string
		want error
	}{
		{"RFC 8414", map[string]string{oauth: metadata(issuerName, jwksURL), jwksURL: set}, "", nil},
		{"OpenID", map[string]string{oidc: metadata(issuerName, jwksURL), jwksURL: set}, "", nil},
		{"keys elsewhere", map[string]string{oidc: metadata(issuerName, "https://keys.example/"), "https://keys.example/": set}, "", nil},
		{"redirect", map[string]string{jwksURL: "redirect /other", "https://as.example/other": set}, jwksURL, nil},
		{"nothing", map[string]string{}, "", ErrUnavailable},
		{"of another issuer", map[string]string{oauth: metadata("https://evil.example", jwksURL), jwksURL: set}, "", ErrUnavailable},
		{"issuer with a slash", map[string]string{oauth: metadata(issuerName+"/", jwksURL), jwksURL: set}, "", ErrUnavailable},
		{"no keys", map[string]string{oauth: metadata(issuerName, "")}, "", ErrUnavailable},
		{"keys without TLS", map[string]string{oauth: metadata(issuerName, "http://as.example/jwks"), "http://as.example/jwks": set}, "", ErrUnavailable},
		{"keys in a file", map[string]string{oauth: metadata(issuerName, "file:///etc/passwd")}, "", ErrUnavailable},
		{"another origin", map[string]string{jwksURL: "redirect https://evil.example/", "https://evil.example/": set}, jwksURL, ErrUnavailable},
		{"downgrade", map[string]string{jwksURL: "redirect http://as.example/x", "http://as.example/x": set}, jwksURL, ErrUnavailable},
		{"redirects without end", map[string]string{jwksURL: "redirect " + jwksURL}, jwksURL, ErrUnavailable},
		{"too large", map[string]string{jwksURL: set + strings.Repeat(" ", maxDocument)}, jwksURL, ErrUnavailable},
		{"no JSON", map[string]string{jwksURL: "<html>"}, jwksURL, ErrUnavailable},
		{"no set", map[string]string{jwksURL: `{}`}, jwksURL, ErrUnavailable},
	}
	for _, tt := range tests {
		synctest.Test(t, func(t *testing.T) {
			i := start(t, &server{at: tt.at}, tt.url, "", io.Discard)
			expect(t, i, signedWith("e"), tt.want, tt.name)
		})
	}
}

// TestDiscoveryWithPath: the issuer's path comes after the well-known part, or before it.
func TestDiscoveryWithPath(t *testing.T) {
	for _, place := range []string{
		"https://as.example/.well-known/oauth-authorization-server/tenant", "https://as.example/.well-known/openid-configuration/tenant",
		"https://as.example/tenant/.well-known/openid-configuration",
	} {
		k := NewKeys("https://as.example/tenant", "", "", nil)
		k.client.Transport = &server{at: map[string]string{
			place: `{"issuer":"https://as.example/tenant","jwks_uri":"https://as.example/jwks"}`, jwksURL: `{"keys":[]}`,
		}}
		if _, err := k.fetch(t.Context()); err != nil {
			t.Errorf("%s: %v", place, err)
		}
	}
}

// TestKeysMove: metadata is read again when the keys are not where they were.
func TestKeysMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const oauth = "https://as.example/.well-known/oauth-authorization-server"
		s := &server{at: map[string]string{oauth: `{"issuer":"https://as.example","jwks_uri":"https://as.example/1"}`, "https://as.example/1": jwks(nil)}}
		i := start(t, s, "", "", io.Discard)
		synctest.Wait()
		s.set(func() {
			delete(s.at, "https://as.example/1")
			s.at[oauth] = `{"issuer":"https://as.example","jwks_uri":"https://as.example/2"}`
			s.at["https://as.example/2"] = jwks(map[string]crypto.Signer{"e": ecKey})
		})
		time.Sleep(refreshEvery + 5*time.Second)
		expect(t, i, signedWith("e"), nil, "moved")
	})
}

// TestUnfitKeys: what is in a set and cannot sign for us is left out, and so is what could
// be misused.
func TestUnfitKeys(t *testing.T) {
	fit := string(must(json.Marshal(jose.JSONWebKey{Key: ecKey.Public(), KeyID: "fit"})))
	private := string(must(json.Marshal(jose.JSONWebKey{Key: otherEC, KeyID: "private"})))
	encrypts := string(must(json.Marshal(jose.JSONWebKey{Key: ecKey.Public(), KeyID: "enc", Use: "enc"})))
	other := string(must(json.Marshal(jose.JSONWebKey{Key: ecKey.Public(), KeyID: "alg", Algorithm: "ES384"})))
	text := `{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"oct"},{"kty":"new","kid":"new"},{"kty":"EC"},{},"",null,` +
		fit + `,` + private + `,` + encrypts + `,` + other + `]}`
	set, err := parseSet([]byte(text))
	var ids []string
	for _, key := range set {
		ids = append(ids, key.id)
	}
	if got := strings.Join(ids, " "); err != nil || got != "fit private alg" {
		t.Errorf("%q, %v", got, err)
	}
	h := header{Algorithm: jose.ES256}
	if set[0].fits(h) != true || set[2].fits(h) {
		t.Error("a key fits that is for another algorithm, or does not and is for this")
	}
	if _, isPublic := set[1].key.(interface{ Public() crypto.PublicKey }); isPublic {
		t.Error("a private key is kept")
	}
}

// TestKeysInFile: a file is read again when it changes.
func TestKeysInFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "jwks")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(jwks(map[string]crypto.Signer{"a": ecKey}))
	if err := CheckFile(file); err != nil {
		t.Error(err)
	}
	synctest.Test(t, func(t *testing.T) {
		i := start(t, nil, "", file, io.Discard)
		expect(t, i, signedWith("a"), nil, "before")
		write(jwks(map[string]crypto.Signer{"bb": ecKey}))
		time.Sleep(lookEvery)
		expect(t, i, signedWith("bb"), nil, "after")
		expect(t, i, signedWith("a"), UnknownKey, "after")
		write("")
		time.Sleep(lookEvery)
		expect(t, i, signedWith("bb"), nil, "an empty file")
	})
	for _, text := range []string{"", "x", `{"keys":[]}`} {
		write(text)
		if err := CheckFile(file); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
