package auth

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
)

// TestJWT: the identity of a token.
func TestJWT(t *testing.T) {
	a, b := newAuthority(t, issuer), newAuthority(t, other)
	second := b.issuer()
	second.Principal = "client_id"
	c := run(t, &Clients{Issuers: []*jwt.Issuer{a.issuer("mcp"), second}, Tokens: []*Token{fixed("default", "secret"), fixed("ci", "p@ss")}})
	principal := func(kind identity.Kind, issuer, name string) identity.Principal {
		return identity.Principal{Kind: kind, Issuer: issuer, Name: name}
	}
	alice := principal(identity.JWT, issuer, "alice")
	tests := []struct {
		name, token string
		want        identity.Principal
		scopes      string
	}{
		{"scope", a.token(nil), alice, "mcp extra"},
		{"scp", a.token(object{"scope": nil, "scp": "mcp x"}), alice, "mcp x"},
		{"list of scp", a.token(object{"scope": nil, "scp": []any{"mcp", "y", 1}}), alice, "mcp y"},
		{"scopes", a.token(object{"scope": nil, "scopes": []string{"z", "mcp"}}), alice, "z mcp"},
		{"another issuer", b.token(object{"scope": nil, "client_id": "ci"}), principal(identity.JWT, other, "ci"), ""},
		{"another principal", a.token(object{"sub": "ci"}), principal(identity.JWT, issuer, "ci"), "mcp extra"},
		{"a static token", "secret", principal(identity.Token, "", "default"), ""},
		{"a static token that no JWT is", "p@ss", principal(identity.Token, "", "ci"), ""},
	}
	for _, tt := range tests {
		for _, when := range []string{"first", "again"} {
			who, why := c.Identify(request("/mcp", tt.token))
			if why != nil || who.Principal != tt.want || strings.Join(who.Scopes, " ") != tt.scopes {
				t.Errorf("%s, %s: %+v, %v", tt.name, when, who, why)
				continue
			}
			isJWT := who.Kind == identity.JWT
			if isJWT != strings.Contains(string(who.Claims), `"iss"`) || isJWT == who.Expires.IsZero() {
				t.Errorf("%s, %s: claims %s, expires %v", tt.name, when, who.Claims, who.Expires)
			}
		}
	}
	first, _ := c.Identify(request("/mcp", tests[0].token))
	if again, _ := c.Identify(request("/mcp", tests[0].token)); again != first {
		t.Error("a token that was verified is verified again")
	}
}

// TestJWTRefused: status and challenge of a refusal, which contain nothing of the token.
func TestJWTRefused(t *testing.T) {
	a, stranger := newAuthority(t, issuer), newAuthority(t, issuer)
	c := run(t, &Clients{Issuers: []*jwt.Issuer{a.issuer("mcp", "offline_access", "tools")}, PublicURL: "https://mcp.example"})
	const head, tail = `Bearer realm="mcp-proxy"`, `scope="mcp tools", resource_metadata="https://mcp.example/.well-known/oauth-protected-resource/mcp/files"`
	invalid := func(why string) string {
		return head + `, error="invalid_token", error_description="` + why + `", ` + tail
	}
	tests := []struct {
		name, header string
		status       int
		challenge    string
	}{
		{"nothing", "", 401, head + ", " + tail},
		{"another scheme", "Basic c2VjcmV0", 401, head + ", " + tail},
		{"no token", "Bearer", 401, head + ", " + tail},
		{"two words", "Bearer secret secret", 400, head + `, error="invalid_request", error_description="Authorization must be the word Bearer and one token", resource_metadata="https://mcp.example/.well-known/oauth-protected-resource/mcp/files"`},
		{"opaque", "Bearer secret", 401, invalid("the bearer token is wrong")},
		{"expired", "Bearer " + a.token(object{"exp": 1}), 401, invalid("the token has expired")},
		{"not for us", "Bearer " + a.token(object{"aud": "https://secret.example"}), 401, invalid("the token is for another audience")},
		{"issuer", "Bearer " + a.token(object{"iss": "https://secret.example"}), 401, invalid("the token is from an untrusted issuer")},
		{"signature", "Bearer " + stranger.token(nil), 401, invalid("the signature of the token is invalid")},
		{"no principal", "Bearer " + a.token(object{"sub": nil}), 401, invalid("the token does not name its subject")},
		{"principal is no text", "Bearer " + a.token(object{"sub": 1}), 401, invalid("the token does not name its subject")},
		{"principal with a line", "Bearer " + a.token(object{"sub": "secret\nsecret"}), 401, invalid("the token does not name its subject")},
		{"principal is no Unicode", "Bearer " + a.token(object{"sub": "\ufffd"}), 401, invalid("the token does not name its subject")},
		{"scopes", "Bearer " + a.token(object{"scope": "mcp secret"}), 403, head + `, error="insufficient_scope", error_description="the token lacks a scope that all requests need", ` + tail},
	}
	for _, tt := range tests {
		r := request("https://localhost/mcp/files", "")
		if tt.header != "" {
			r.Header.Set("Authorization", tt.header)
		}
		who, why := c.Identify(r)
		if who != nil || why == nil || why.Status != tt.status {
			t.Errorf("%s: %v, %v", tt.name, who, why)
			continue
		}
		if got := c.Challenge(r, why); got != tt.challenge {
			t.Errorf("%s:\n%s\nwant\n%s", tt.name, got, tt.challenge)
		}
		if text := fmt.Sprint(why.Text, c.Challenge(r, why)); strings.Contains(text, "secret") {
			t.Errorf("%s: %s", tt.name, text)
		}
	}
}

// TestTokenInURL: a token in the URL is refused, even with a valid one in the header.
func TestTokenInURL(t *testing.T) {
	a := newAuthority(t, issuer)
	c := run(t, &Clients{Issuers: []*jwt.Issuer{a.issuer()}, Tokens: []*Token{fixed("default", "secret")}})
	for _, query := range []string{"?access_token=secret", "?x=1&access%5Ftoken=" + a.token(nil)} {
		for _, header := range []string{"", "secret", a.token(nil)} {
			who, why := c.Identify(request("/mcp"+query, header))
			if who != nil || why == nil || why.Status != 400 || why.Code != "invalid_request" {
				t.Errorf("%v, %v", who, why)
			}
		}
	}
	who, why := (&Clients{Tokens: c.Tokens}).Identify(request("/mcp?access_token=secret", ""))
	if who != nil || why == nil || why.Status != 401 {
		t.Errorf("without issuers: %v, %v", who, why)
	}
}

// TestRemembered: how long a token stays in the cache.
func TestRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t, issuer)
		c := run(t, &Clients{Issuers: []*jwt.Issuer{a.issuer()}})
		identify := func(token string, ok bool, when string) *identity.Identity {
			t.Helper()
			who, why := c.Identify(request("/mcp", token))
			if ok != (why == nil) {
				t.Errorf("%s: %v, %v", when, who, why)
			}
			return who
		}
		long, short := a.token(nil), a.token(object{"exp": time.Now().Add(time.Minute).Unix()})
		first := identify(long, true, "at first")
		identify(short, true, "at first")
		time.Sleep(time.Minute)
		identify(short, false, "expired")
		time.Sleep(cacheFor - time.Minute - time.Nanosecond)
		if identify(long, true, "just before") != first {
			t.Error("it was verified again too early")
		}
		time.Sleep(time.Nanosecond)
		if identify(long, true, "after 5 minutes") == first {
			t.Error("it was not verified again")
		}
		a.publish("another")
		time.Sleep(6 * time.Second)
		identify(long, false, "its key is gone")
		a.publish("k")
		time.Sleep(6 * time.Second)
		identify(long, true, "its key is back")
	})
}

// TestRememberedByTheWallClock: a token in the cache expires by the wall clock. A time that has a monotonic reading is
// compared by that, which does not count the time of a suspend.
func TestRememberedByTheWallClock(t *testing.T) {
	a := newAuthority(t, issuer)
	c := run(t, &Clients{Issuers: []*jwt.Issuer{a.issuer()}})
	for what, life := range map[string]time.Duration{"longer than the cache": time.Hour, "shorter": time.Minute} {
		token := a.token(object{"exp": time.Now().Add(life).Unix()})
		if _, why := c.Identify(request("/mcp", token)); why != nil {
			t.Fatal(what, why)
		}
		if until := c.cache[hash(token)].until; until != until.Round(0) {
			t.Errorf("%s: in the cache until %v, which has a monotonic reading", what, until)
		}
	}
}

// TestMemoryIsBounded: the cache is bounded.
func TestMemoryIsBounded(t *testing.T) {
	var m Clients
	who := &identity.Identity{Good: t.Context()}
	for n := range 3 * maxCached {
		m.keep(hash(fmt.Sprint(n)), &cachedJWT{who: who, until: time.Now().Add(time.Hour)})
		if len(m.cache) > maxCached {
			t.Fatalf("%d tokens are cached", len(m.cache))
		}
	}
	if m.cached(hash(fmt.Sprint(3*maxCached-1)), nil) == nil {
		t.Error("the last one is forgotten")
	}
}

// TestTokenForOneResource: a token for one of our paths is valid only there, cached or not. It needs a public URL.
func TestTokenForOneResource(t *testing.T) {
	a := newAuthority(t, issuer)
	c := run(t, &Clients{Issuers: []*jwt.Issuer{a.issuer()}, PublicURL: "https://mcp.example"})
	token := a.token(object{"aud": "https://mcp.example/mcp/files"})
	for range 2 {
		for path, ok := range map[string]bool{"/mcp/files": true, "/mcp": false, "/mcp/other": false, "/ws/files": false, "/": false, "/mcp/files/x": false} {
			if who, why := c.Identify(request(path, token)); ok != (why == nil) {
				t.Errorf("%s: %v, %v", path, who, why)
			}
		}
	}
	c = run(t, &Clients{Issuers: []*jwt.Issuer{a.issuer()}})
	r := request("https://mcp.example/mcp/files", token)
	if who, why := c.Identify(r); why == nil {
		t.Errorf("by the Host alone: %v", who)
	}
}

// TestKeysUnknown: without keys, no token can be called wrong. A static token does not wait for keys.
func TestKeysUnknown(t *testing.T) {
	a := newAuthority(t, issuer)
	i := a.issuer()
	i.Keys = jwt.NewKeys(issuer, "", a.file+".not", fixed("", "").log)
	c := run(t, &Clients{Issuers: []*jwt.Issuer{i}, Tokens: []*Token{fixed("default", "secret")}})
	for token, status := range map[string]int{"secret": 0, a.token(nil): http.StatusServiceUnavailable, "wrong": http.StatusUnauthorized} {
		_, why := c.Identify(request("/mcp", token))
		if (why == nil) != (status == 0) || why != nil && why.Status != status {
			t.Errorf("%v, want %d", why, status)
		}
	}
}

// TestScopesOfSeveralIssuers: a challenge has only scopes that all issuers know.
func TestScopesOfSeveralIssuers(t *testing.T) {
	a, b := newAuthority(t, issuer), newAuthority(t, other)
	c := &Clients{Issuers: []*jwt.Issuer{a.issuer("mcp", "a"), b.issuer("b", "mcp")}}
	if got := c.scopes(); !slices.Equal(got, []string{"mcp"}) {
		t.Errorf("%q", got)
	}
}

// BenchmarkIdentify measures a request by kind of credentials. Compare jwt with none.
func BenchmarkIdentify(b *testing.B) {
	a := newAuthority(b, issuer)
	token := a.token(object{"groups": strings.Split(strings.Repeat("group,", 40), ",")})
	withJWT := run(b, &Clients{Issuers: []*jwt.Issuer{a.issuer("mcp")}})
	for name, of := range map[string]struct {
		c *Clients
		r *http.Request
	}{
		"token": {&Clients{Tokens: []*Token{fixed("default", "secret")}}, request("/mcp", "secret")},
		"jwt":   {withJWT, request("/mcp", token)},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, why := of.c.Identify(of.r); why != nil {
					b.Fatal(why)
				}
			}
		})
	}
}
