package jwt

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"
)

// Keys are slow to generate, so all tests share them.
var (
	rsaKey  = must(rsa.GenerateKey(rand.Reader, 2048))
	ecKey   = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	otherEC = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	edKey   = func() ed25519.PrivateKey { _, k, _ := ed25519.GenerateKey(rand.Reader); return k }()
)

// A server is the server of an issuer, in memory.
type server struct {
	mu      sync.Mutex
	at      map[string]string // what is at each URL
	down    bool
	slow    time.Duration
	fetches int
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	text, ok := s.at[r.URL.String()]
	down, slow := s.down, s.slow
	s.fetches++
	s.mu.Unlock()
	select {
	case <-time.After(slow):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if down {
		return nil, errors.New("connection refused")
	}
	resp := &http.Response{StatusCode: 200, Header: http.Header{}, Request: r, Body: io.NopCloser(strings.NewReader(text))}
	if to, redirects := strings.CutPrefix(text, "redirect "); redirects {
		resp.StatusCode = 302
		resp.Header.Set("Location", to)
	}
	if !ok {
		resp.StatusCode = 404
	}
	return resp, nil
}

func (s *server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fetches
}

const (
	issuerName = "https://as.example"
	jwksURL    = "https://as.example/jwks"
)

// jwks is a set of public keys by kid.
func jwks(keys map[string]crypto.Signer) string {
	var set jose.JSONWebKeySet
	for id, key := range keys {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Public(), KeyID: id})
	}
	return string(must(json.Marshal(set)))
}

// start runs an issuer's keys until the test ends.
func start(t testing.TB, s *server, url, file string, log io.Writer) *Issuer {
	k := NewKeys(issuerName, url, file, slog.New(slog.NewTextHandler(log, nil)))
	if s != nil {
		k.client.Transport = s
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); k.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return &Issuer{
		Name: issuerName, Audience: []string{"https://mcp.example/mcp"}, Skew: 30 * time.Second, Keys: k,
		Algorithms: []string{"RS256", "PS256", "ES256", "EdDSA"},
	}
}

type object map[string]any

// good returns the claims of a valid token, with changes; nil removes a claim.
func good(changes object) object {
	claims := object{
		"iss": issuerName, "aud": "https://mcp.example/mcp", "sub": "alice", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix(),
	}
	for name, value := range changes {
		claims[name] = value
		if value == nil {
			delete(claims, name)
		}
	}
	return claims
}

func encode(v any) string {
	text, ok := v.(string)
	if !ok {
		text = string(must(json.Marshal(v)))
	}
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

// sign makes a token from a header and a payload, objects or JSON text. A library would refuse most of them.
func sign(key any, alg jose.SignatureAlgorithm, head, payload any) string {
	input := encode(head) + "." + encode(payload)
	return input + "." + base64.RawURLEncoding.EncodeToString(signature(key, alg, input))
}

func signature(key any, alg jose.SignatureAlgorithm, input string) []byte {
	hash := crypto.SHA256.New()
	hash.Write([]byte(input))
	sum := hash.Sum(nil)
	switch key := key.(type) {
	case []byte:
		mac := hmac.New(crypto.SHA256.New, key)
		mac.Write([]byte(input))
		return mac.Sum(nil)
	case *rsa.PrivateKey:
		if alg == jose.PS256 {
			return must(rsa.SignPSS(rand.Reader, key, crypto.SHA256, sum, nil))
		}
		return must(rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum))
	case *ecdsa.PrivateKey:
		r, s, err := ecdsa.Sign(rand.Reader, key, sum)
		if err != nil {
			panic(err)
		}
		return append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	case ed25519.PrivateKey:
		return ed25519.Sign(key, []byte(input))
	}
	panic("no such key")
}
