package main

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// Configurations in which clients prove who they are.
const (
	byToken = "by-token"
	byJWT   = "by-jwt"
	byRules = "by-rules" // with a JWT, and policies
)

const staticToken = "a-static-token-of-an-ordinary-length"

// extras returns the pairs that differ in what the proxy does besides: it knows its clients, and
// operators look in.
func (b programs) extras() ([]pair, error) {
	token, err := b.writeJWT()
	if err != nil {
		return nil, err
	}
	if err := b.writeToken(); err != nil {
		return nil, err
	}
	http := func(config, token string) target {
		return target{argv: b.serve(config), serves: true, open: openHTTPWith(token)}
	}
	all := []pair{
		{name: "static token over none", base: http(alone, ""), with: http(byToken, staticToken)},
		{name: "JWT over static token", base: http(byToken, staticToken), with: http(byJWT, token), aim: 0.03},
		{name: "policies over none", base: http(byJWT, token), with: http(byRules, token), aim: 0.03},
	}
	hop, err := b.hop()
	if err != nil {
		return nil, err
	}
	all = append(all, hop)
	for _, p := range []pair{
		{name: "stdio", base: target{argv: b.stdio(alone), open: openStdio}},
		{name: "websocket", base: b.webSocket(alone)},
		{name: "http", base: target{argv: b.serve(alone), serves: true, open: openHTTP}},
	} {
		watched, err := b.watched(p)
		if err != nil {
			return nil, err
		}
		all = append(all, watched...)
	}
	return all, nil
}

// upstream is the member of a configuration that has the echo server.
func (b programs) upstream() string {
	return fmt.Sprintf(`"upstreams": {"echo": {"command": %q, "era": "legacy"}}`, b.echo)
}

// writeToken writes the configuration by token.
func (b programs) writeToken() error {
	if err := os.WriteFile(b.file("token"), []byte(staticToken), 0o600); err != nil {
		return err
	}
	text := fmt.Sprintf(`{%s, "tokenFile": %q}`, b.upstream(), b.file("token"))
	return os.WriteFile(b.config(byToken), []byte(text), 0o600)
}

// writeJWT writes the configurations with a JWT, and returns one that they take.
func (b programs) writeJWT() (string, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return "", err
	}
	const issuer, audience = "https://login.example.com", "https://mcp.example.com/mcp"
	code := base64.RawURLEncoding.EncodeToString
	set := fmt.Sprintf(`{"keys":[{"kty":"RSA","use":"sig","alg":"RS256","kid":"bench","n":%q,"e":"AQAB"}]}`, code(key.N.Bytes())) // 65537
	auth := fmt.Sprintf(`"auth": {"jwt": [{"issuer": %q, "audience": %q, "jwksFile": %q}]}`, issuer, audience, b.file("keys"))
	policies := fmt.Sprintf(`"policies": [{"who": {"token": "default"}}, {"who": {"issuer": %q, "claims": {"groups": "bench"}}, `+
		`"tools": {"deny": ["other__*"]}, "limits": {"inFlight": 10000}}]`, issuer)
	for path, text := range map[string]string{
		b.file("keys"):    set,
		b.config(byJWT):   fmt.Sprintf(`{%s, %s}`, b.upstream(), auth),
		b.config(byRules): fmt.Sprintf(`{%s, %s, %s, "tokenFile": %q}`, b.upstream(), auth, policies, b.file("token")),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	claims, err := json.Marshal(map[string]any{
		"iss": issuer, "aud": audience, "sub": "1f0c62e4-8d1b-4e0e-9a8f-1f6f5d0a7c11", "exp": time.Now().Add(24 * time.Hour).Unix(),
		"iat": time.Now().Unix(), "scope": "openid profile mcp", "groups": []string{"users", "bench"}, "azp": "bench", "jti": "5b0f3f3e",
	})
	if err != nil {
		return "", err
	}
	text := code([]byte(`{"alg":"RS256","kid":"bench","typ":"at+jwt"}`)) + "." + code(claims)
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, key, crypto.SHA256, sum[:])
	return text + "." + code(signature), err
}

// watched returns two pairs of p's base: with a socket at which operators can look in, and with
// one of them who reads all messages there.
func (b programs) watched(p pair) ([]pair, error) {
	config := "watched-" + p.name
	socket := b.file(config + ".sock")
	p.with = p.base
	p.with.argv = append([]string{}, p.base.argv...)
	for i, arg := range p.with.argv {
		if arg == b.config(alone) {
			p.with.argv[i] = b.config(config)
		}
	}
	p.base = b.inDark(p.base)
	tapped := p
	p.name, p.aim = p.name+", metrics", 0.02
	tapped.name, tapped.aim = tapped.name+", tapped", 0.15
	tapped.watch = func(ctx context.Context) error { return read(ctx, socket, "/tap") }
	text := fmt.Sprintf(`{%s, "limits": {"sessions": 4096}, "admin": {"listen": [%q]}}`, b.upstream(), "unix://"+socket)
	return []pair{p, tapped}, os.WriteFile(b.config(config), []byte(text), 0o600)
}

// read begins to read what an operator gets at path, until ctx ends.
func read(ctx context.Context, socket, path string) error {
	body, err := look(ctx, socket, path)
	if err != nil {
		return err
	}
	go func() {
		defer body.Close()
		io.Copy(io.Discard, body)
	}()
	return nil
}

// look returns what an operator gets at path.
func look(ctx context.Context, socket, path string) (io.ReadCloser, error) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+path, nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	resp, err := client.Do(r) //nolint:bodyclose // the caller does
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return resp.Body, nil
}

// metric returns the value of a metric with all its labels; zero if there is none yet.
func metric(socket, name string) (float64, error) {
	body, err := look(context.Background(), socket, "/metrics")
	if err != nil {
		return 0, err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, err
}
