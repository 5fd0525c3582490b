package jwt

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func inPEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// TestAssertion: each form of a key file gives an assertion that its public key verifies,
// and whose claims are those of RFC 7523.
func TestAssertion(t *testing.T) {
	r := must(rsa.GenerateKey(rand.Reader, 2048))
	e := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	e384 := must(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	jwk := jose.JSONWebKey{Key: r, KeyID: "k1", Algorithm: "PS256"}
	tests := map[string]struct {
		text   string
		public crypto.PublicKey
		alg    jose.SignatureAlgorithm
		kid    string
	}{
		"PKCS #8 RSA":     {inPEM("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(r))), r.Public(), jose.RS256, ""},
		"PKCS #1":         {inPEM("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(r)), r.Public(), jose.RS256, ""},
		"PKCS #8 EC":      {inPEM("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(e))), e.Public(), jose.ES256, ""},
		"SEC 1":           {inPEM("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(e384))), e384.Public(), jose.ES384, ""},
		"after params":    {inPEM("EC PARAMETERS", []byte("x")) + inPEM("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(e))), e.Public(), jose.ES256, ""},
		"PKCS #8 Ed25519": {inPEM("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(ed))), ed.Public(), jose.EdDSA, ""},
		"JWK":             {string(must(json.Marshal(jwk))), r.Public(), jose.PS256, "k1"},
	}
	for name, tt := range tests {
		first, err := Assertion([]byte(tt.text), "me", "https://as.example")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		second := must(Assertion([]byte(tt.text), "me", "https://as.example"))
		if first == second {
			t.Errorf("%s: two assertions are one", name)
		}
		jws, err := jose.ParseSignedCompact(first, []jose.SignatureAlgorithm{tt.alg})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if kid := jws.Signatures[0].Protected.KeyID; kid != tt.kid {
			t.Errorf("%s: kid %q, want %q", name, kid, tt.kid)
		}
		payload, err := jws.Verify(tt.public)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var claims struct {
			Iss string `json:"iss"`
			Sub string `json:"sub"`
			Aud string `json:"aud"`
			Jti string `json:"jti"`
			Iat int64  `json:"iat"`
			Exp int64  `json:"exp"`
		}
		json.Unmarshal(payload, &claims)
		if claims.Iss != "me" || claims.Sub != "me" || claims.Aud != "https://as.example" || len(claims.Jti) < 20 ||
			claims.Exp-claims.Iat != 120 || time.Since(time.Unix(claims.Iat, 0)).Abs() > time.Minute {
			t.Errorf("%s: %s", name, payload)
		}
	}
}

// TestBadKeys: errors of invalid keys contain nothing of them.
func TestBadKeys(t *testing.T) {
	small := must(rsa.GenerateKey(rand.Reader, 1024))
	e := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	p224 := must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))
	tests := map[string]struct{ text, want string }{
		"nothing":   {"", "no private key"},
		"text":      {"secretsecret", "no private key"},
		"public":    {inPEM("PUBLIC KEY", must(x509.MarshalPKIXPublicKey(e.Public()))), "no private key"},
		"JWK":       {string(must(json.Marshal(jose.JSONWebKey{Key: e.Public()}))), "no private key"},
		"symmetric": {`{"kty":"oct","k":"c2VjcmV0"}`, "no private key"},
		"alg":       {string(must(json.Marshal(jose.JSONWebKey{Key: e, Algorithm: "HS256"}))), "does not fit"},
		"1024 bits": {inPEM("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(small)), "2048"},
		"P-224":     {inPEM("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(p224))), "unsupported type"},
		"encrypted": {inPEM("ENCRYPTED PRIVATE KEY", []byte("secret")), "encrypted"},
	}
	for name, tt := range tests {
		_, err := Assertion([]byte(tt.text), "me", "https://as.example")
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}
