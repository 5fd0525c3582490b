package auth

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jwt"
)

const issuer, other = "https://as.example", "https://login.example"

// An authority signs tokens, and has its keys in a file.
type authority struct {
	t    testing.TB
	name string
	file string
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB, name string) *authority {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{t: t, name: name, file: filepath.Join(t.TempDir(), "jwks"), key: key}
	a.publish("k")
	return a
}

// publish publishes its key under these ids.
func (a *authority) publish(ids ...string) {
	a.t.Helper()
	point, err := a.key.PublicKey.Bytes()
	if err != nil {
		a.t.Fatal(err)
	}
	keys := []any{}
	for _, id := range ids {
		keys = append(keys, object{"kty": "EC", "crv": "P-256", "kid": id, "x": encode(point[1:33]), "y": encode(point[33:])})
	}
	text, _ := json.Marshal(object{"keys": keys})
	if err := os.WriteFile(a.file, text, 0o600); err != nil {
		a.t.Fatal(err)
	}
}

type object map[string]any

func encode(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// token returns a valid token with changed claims; nil removes one.
func (a *authority) token(changes object) string {
	claims := object{"iss": a.name, "aud": "https://mcp.example/mcp", "sub": "alice", "scope": "mcp extra", "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range changes {
		claims[name] = value
		if value == nil {
			delete(claims, name)
		}
	}
	head, _ := json.Marshal(object{"alg": "ES256", "kid": "k"})
	payload, _ := json.Marshal(claims)
	input := encode(head) + "." + encode(payload)
	sum := sha256.Sum256([]byte(input))
	r, s, err := ecdsa.Sign(rand.Reader, a.key, sum[:])
	if err != nil {
		a.t.Fatal(err)
	}
	return input + "." + encode(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

func (a *authority) issuer(scopes ...string) *jwt.Issuer {
	return &jwt.Issuer{
		Name: a.name, Audience: []string{"https://mcp.example/mcp"}, Algorithms: []string{"ES256"}, Principal: "sub", Scopes: scopes,
		Keys: jwt.NewKeys(a.name, "", a.file, slog.New(slog.DiscardHandler)),
	}
}

// run runs c until the test ends.
func run(t testing.TB, c *Clients) *Clients {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); NewCurrent(c).Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return c
}

// request returns a request to a path or URL, with a bearer token unless it is "".
func request(path, token string) *http.Request {
	r := httptest.NewRequest(http.MethodPost, path, bytes.NewReader(nil))
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}
