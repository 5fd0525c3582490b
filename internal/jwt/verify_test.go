package jwt

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

const here = "https://mcp.example/ws"

func threeKeys() *server {
	return &server{at: map[string]string{jwksURL: jwks(map[string]crypto.Signer{"r": rsaKey, "e": ecKey, "d": edKey})}}
}

// TestVerify lists kinds of tokens and their results.
func TestVerify(t *testing.T) {
	es := object{"alg": "ES256", "kid": "e"}
	with := func(changes object) object {
		h := object{"alg": "ES256", "kid": "e"}
		for name, value := range changes {
			h[name] = value
		}
		return h
	}
	es256 := func(head, payload any) string { return sign(ecKey, jose.ES256, head, payload) }
	token := func(changes object) string { return es256(es, good(changes)) }
	from := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	publicPEM := []byte(inPEM("PUBLIC KEY", must(x509.MarshalPKIXPublicKey(rsaKey.Public()))))
	ownKey := must(json.Marshal(jose.JSONWebKey{Key: otherEC.Public()}))

	synctest.Test(t, func(t *testing.T) {
		i := start(t, threeKeys(), jwksURL, "", io.Discard)
		whole := token(nil)
		cut := strings.LastIndex(whole, ".")
		tests := []struct {
			name, token string
			want        error
		}{
			{"ES256", whole, nil},
			{"RS256", sign(rsaKey, jose.RS256, object{"alg": "RS256", "kid": "r"}, good(nil)), nil},
			{"PS256", sign(rsaKey, jose.PS256, object{"alg": "PS256", "kid": "r"}, good(nil)), nil},
			{"EdDSA", sign(edKey, jose.EdDSA, object{"alg": "EdDSA", "kid": "d"}, good(nil)), nil},
			{"no kid", es256(object{"alg": "ES256"}, good(nil)), nil},
			{"at+jwt", es256(with(object{"typ": "at+JWT"}), good(nil)), nil},
			{"application/at+jwt", es256(with(object{"typ": "application/at+jwt"}), good(nil)), nil},

			{"none", encode(object{"alg": "none"}) + "." + encode(good(nil)) + ".", WrongAlg},
			{"None", encode(object{"alg": "None"}) + "." + encode(good(nil)) + ".", WrongAlg},
			{"no alg", es256(object{"kid": "e"}, good(nil)), WrongAlg},
			{"HS256 with the public key in PEM", sign(publicPEM, jose.HS256, object{"alg": "HS256", "kid": "r"}, good(nil)), WrongAlg},
			{"HS256 with the modulus", sign(rsaKey.N.Bytes(), jose.HS256, object{"alg": "HS256", "kid": "r"}, good(nil)), WrongAlg},
			{"RS384 is not allowed", sign(rsaKey, jose.RS256, object{"alg": "RS384", "kid": "r"}, good(nil)), WrongAlg},
			{"alg of another key", sign(rsaKey, jose.RS256, object{"alg": "RS256", "kid": "e"}, good(nil)), UnknownKey},
			{"alg in capitals", es256(object{"ALG": "ES256", "kid": "e"}, good(nil)), WrongAlg},
			{"two alg", es256(`{"alg":"none","alg":"ES256","kid":"e"}`, good(nil)), Malformed},

			{"signature missing", whole[:cut+1], BadSignature},
			{"signature cut", whole[:cut+9], BadSignature},
			{"another's signature", sign(otherEC, jose.ES256, es, good(nil)), BadSignature},
			{"another's signature, no kid", sign(otherEC, jose.ES256, object{"alg": "ES256"}, good(nil)), UnknownKey},
			{"payload changed", encode(es) + "." + encode(good(object{"sub": "root"})) + whole[cut:], BadSignature},
			{"its own key (jwk)", sign(otherEC, jose.ES256, `{"alg":"ES256","kid":"e","jwk":`+string(ownKey)+`}`, good(nil)), BadSignature},
			{"its own keys (jku)", sign(otherEC, jose.ES256, with(object{"jku": "https://evil.example/jwks"}), good(nil)), BadSignature},
			{"its own keys (x5u)", sign(otherEC, jose.ES256, with(object{"x5u": "https://evil.example/x5u"}), good(nil)), BadSignature},
			{"kid is a path", sign(otherEC, jose.ES256, with(object{"kid": "../../../../dev/null"}), good(nil)), UnknownKey},
			{"kid is a URL", sign(otherEC, jose.ES256, with(object{"kid": "https://evil.example/jwks"}), good(nil)), UnknownKey},
			{"kid is SQL", sign([]byte("x"), jose.HS256, object{"alg": "HS256", "kid": "x' UNION SELECT 'x"}, good(nil)), WrongAlg},
			{"kid is no text", es256(with(object{"kid": []string{"e"}}), good(nil)), Malformed},
			{"crit", es256(with(object{"crit": []string{"exp"}}), good(nil)), Malformed},
			{"crit null", es256(`{"alg":"ES256","kid":"e","crit":null}`, good(nil)), Malformed},
			{"b64", es256(with(object{"b64": false, "crit": []string{"b64"}}), good(nil)), Malformed},
			{"of a logout", es256(with(object{"typ": "logout+jwt"}), good(nil)), WrongType},
			{"ID token", token(object{"at_hash": "x"}), WrongType},
			{"ID token of a code", token(object{"c_hash": "x"}), WrongType},
			{"ID token of Keycloak", token(object{"typ": "ID"}), WrongType},
			{"refresh token of Keycloak", token(object{"typ": "Refresh"}), WrongType},
			{"access token of Keycloak", token(object{"typ": "Bearer", "at_hash": nil}), nil},
			{"of DPoP", es256(with(object{"typ": "dpop+jwt"}), good(nil)), WrongType},

			{"nothing", "", Malformed},
			{"opaque", "secret", Malformed},
			{"dots", "..", Malformed},
			{"JWE", "a.b.c.d.e", Malformed},
			{"JWS JSON", `{"payload":"` + encode(good(nil)) + `","protected":"` + encode(es) + `","signature":"x"}`, Malformed},
			{"JWS JSON with dots", `{"payload":".","protected":".","signature":""}`, Malformed},
			{"huge", es256(es, good(object{"x": strings.Repeat("x", 16<<10)})), Malformed},
			{"padding", encode(es) + "=." + whole[strings.Index(whole, ".")+1:], Malformed},
			{"claims are a list", es256(es, `[]`), Malformed},
			{"claims are null", es256(es, `null`), Malformed},
			{"no UTF-8", es256(es, "{\"iss\":\"\xff\"}"), Malformed},
			{"two objects", es256(es, `{"iss":"https://as.example"}{}`), Malformed},

			{"no issuer", token(object{"iss": nil}), WrongIssuer},
			{"another issuer", token(object{"iss": "https://evil.example"}), WrongIssuer},
			{"issuer with a slash", token(object{"iss": issuerName + "/"}), WrongIssuer},
			{"issuers", token(object{"iss": []string{issuerName}}), WrongIssuer},
			{"two issuers", es256(es, `{"iss":"https://evil.example","iss":"https://as.example","aud":"https://mcp.example/mcp","exp":99999999999}`), Malformed},

			{"audience in a list", token(object{"aud": []string{"https://other.example", "https://mcp.example/mcp"}}), nil},
			{"audience with a slash", token(object{"aud": "https://mcp.example/mcp/"}), nil},
			{"no audience", token(object{"aud": nil}), WrongAudience},
			{"empty audience", token(object{"aud": ""}), WrongAudience},
			{"no audiences", token(object{"aud": []string{}}), WrongAudience},
			{"this very resource", token(object{"aud": here + "/"}), nil},
			{"another audience", token(object{"aud": "https://mcp.example/mcp/files"}), WrongAudience},
			{"two aud", es256(es, `{"iss":"https://as.example","aud":"https://mcp.example/mcp","aud":"x","exp":99999999999}`), Malformed},
			{"two deep inside", es256(es, `{"iss":"https://as.example","aud":"https://mcp.example/mcp","exp":99999999999,"x":[{"a":1,"a":2}]}`), Malformed},
			{"Aud", token(object{"aud": nil, "Aud": "https://mcp.example/mcp"}), WrongAudience},

			{"no exp", token(object{"exp": nil}), NoExpiry},
			{"exp is text", token(object{"exp": "99999999999"}), NoExpiry},
			{"exp is null", es256(es, `{"iss":"https://as.example","aud":"https://mcp.example/mcp","exp":null}`), NoExpiry},
			{"expired", token(object{"exp": from(-31 * time.Second)}), Expired},
			{"expired by a slow clock", token(object{"exp": from(-29 * time.Second)}), nil},
			{"exp is huge", es256(es, `{"iss":"https://as.example","aud":"https://mcp.example/mcp","exp":1e300}`), nil},
			{"exp is small", es256(es, `{"iss":"https://as.example","aud":"https://mcp.example/mcp","exp":-1e300}`), Expired},
			{"exp is too large", es256(es, `{"iss":"https://as.example","aud":"https://mcp.example/mcp","exp":1e999}`), Malformed},
			{"not yet", token(object{"nbf": from(31 * time.Second)}), TooEarly},
			{"soon", token(object{"nbf": from(29 * time.Second)}), nil},
			{"issued later", token(object{"iat": from(31 * time.Second)}), TooEarly},
			{"issued by a fast clock", token(object{"iat": from(29 * time.Second)}), nil},
			{"nbf is text", token(object{"nbf": "0"}), Malformed},
		}
		for _, tt := range tests {
			got, err := Verify(t.Context(), []*Issuer{{Name: "https://first.example"}, i}, here, tt.token)
			if !errors.Is(err, tt.want) {
				t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
			} else if err == nil && (got.Issuer != i || !time.Now().Before(got.Expires) || (got.Only == here) != (tt.name == "this very resource")) {
				t.Errorf("%s: %+v", tt.name, got)
			}
		}
	})
}

// FuzzVerify: every verified token was signed.
func FuzzVerify(f *testing.F) {
	i := start(f, threeKeys(), jwksURL, "", io.Discard)
	whole := sign(ecKey, jose.ES256, object{"alg": "ES256", "kid": "e"}, good(nil))
	f.Add(whole)
	f.Add(whole + "a")
	f.Add("a.b.c")
	f.Add(encode(object{"alg": "none"}) + "." + encode(good(nil)) + ".")
	f.Add(encode(`{"alg":"ES256","jwk":{"kty":"EC"},"x5c":["a"]}`) + "." + encode(good(nil)) + ".AAAA")
	f.Fuzz(func(t *testing.T, token string) {
		if _, err := Verify(t.Context(), []*Issuer{i}, here, token); err == nil && token != whole {
			t.Errorf("%q", token)
		}
	})
}

// FuzzVerifyParts does the same with header and payload.
func FuzzVerifyParts(f *testing.F) {
	i := start(f, threeKeys(), jwksURL, "", io.Discard)
	f.Add(`{"alg":"ES256","kid":"e"}`, string(must(json.Marshal(good(nil)))))
	f.Add(`{"alg":"ES256","kid":"e","crit":[]}`, `{"iss":"https://as.example","aud":[1],"exp":1e9}`)
	f.Fuzz(func(t *testing.T, head, payload string) {
		Verify(t.Context(), []*Issuer{i}, here, sign(otherEC, jose.ES256, head, payload))
		if token, err := Verify(t.Context(), []*Issuer{i}, here, sign(ecKey, jose.ES256, head, payload)); err == nil && string(token.Payload) != payload {
			t.Errorf("%q", token.Payload)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	i := start(b, threeKeys(), jwksURL, "", io.Discard)
	for name, token := range map[string]string{
		"RS256": sign(rsaKey, jose.RS256, object{"alg": "RS256", "kid": "r"}, good(nil)),
		"ES256": sign(ecKey, jose.ES256, object{"alg": "ES256", "kid": "e"}, good(nil)),
		"EdDSA": sign(edKey, jose.EdDSA, object{"alg": "EdDSA", "kid": "d"}, good(nil)),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Verify(context.Background(), []*Issuer{i}, here, token); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
