package proxy

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config"
)

// An authServer is an authorization server that has rotated its keys some times.
type authServer struct {
	*httptest.Server
	key     *ecdsa.PrivateKey
	rotated atomic.Int64
	fetches atomic.Int64 // of keys
}

func newAuthServer(t *testing.T) *authServer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s := &authServer{key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, s.URL, s.URL+"/jwks")
	})
	mux.HandleFunc("/jwks", func(w http.ResponseWriter, _ *http.Request) {
		s.fetches.Add(1)
		point, _ := s.key.PublicKey.Bytes()
		x, y := base64.RawURLEncoding.EncodeToString(point[1:33]), base64.RawURLEncoding.EncodeToString(point[33:])
		last := s.rotated.Load()
		var keys []string
		for n := range last + 1 { // also the old ones: a call may take longer than two rotations
			keys = append(keys, fmt.Sprintf(`{"kty":"EC","crv":"P-256","kid":"k%d","x":%q,"y":%q}`, n, x, y))
		}
		fmt.Fprintf(w, `{"keys":[%s]}`, strings.Join(keys, ","))
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// token is one for alice, signed with the newest key.
func (s *authServer) token() string {
	b64 := base64.RawURLEncoding.EncodeToString
	input := b64(fmt.Appendf(nil, `{"alg":"ES256","kid":"k%d"}`, s.rotated.Load())) + "." +
		b64(fmt.Appendf(nil, `{"iss":%q,"aud":"https://mcp.example/mcp","sub":"alice","jti":%q,"scope":"mcp","exp":%d}`, s.URL, rand.Text(), time.Now().Add(time.Hour).Unix()))
	sum := sha256.Sum256([]byte(input))
	r, v, err := ecdsa.Sign(rand.Reader, s.key, sum[:])
	if err != nil {
		panic(err)
	}
	return input + "." + b64(append(r.FillBytes(make([]byte, 32)), v.FillBytes(make([]byte, 32))...))
}

// initialize posts the first message of a client to a URL.
func initialize(t *testing.T, url, token string) *http.Response {
	t.Helper()
	return initializeWith(t, http.DefaultClient, url, token)
}

func initializeWith(t *testing.T, c *http.Client, url, token string) *http.Response {
	t.Helper()
	const first = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(first))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return resp
}

func jwtConfig(s *authServer) config.Config {
	return config.Config{
		Limits: config.Limits{Sessions: 10000},
		Frontend: config.Frontend{Auth: config.Auth{JWT: []config.Issuer{{
			Key: "auth.jwt[0]", Issuer: s.URL, Audience: []string{"https://mcp.example/mcp"}, Algorithms: []string{"ES256"}, Principal: "sub",
			Scopes: []string{"mcp"}, Skew: time.Second,
		}}}},
	}
}

// TestJWTThroughTheDoor: a client learns where to get a token, and needs it. The log has neither
// the token nor a wrong one.
func TestJWTThroughTheDoor(t *testing.T) {
	as := newAuthServer(t)
	var log lockedBuffer
	cfg := jwtConfig(as)
	p, err := New(&cfg, Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	server := httptest.NewServer(p.Handler())
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()

	refused := initialize(t, server.URL+"/mcp", "")
	challenge := refused.Header.Get("WWW-Authenticate")
	at := regexp.MustCompile(`resource_metadata="([^"]+)"`).FindStringSubmatch(challenge)
	if refused.StatusCode != 401 || at == nil || !strings.Contains(challenge, `scope="mcp"`) {
		t.Fatalf("%s, %s", refused.Status, challenge)
	}
	resp, err := http.Get(at[1])
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var metadata struct {
		Resource string
		Servers  []string `json:"authorization_servers"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&metadata); err != nil || metadata.Resource != server.URL+"/mcp" || len(metadata.Servers) != 1 || metadata.Servers[0] != as.URL {
		t.Errorf("%+v, %v", metadata, err)
	}
	token := as.token()
	if resp := initialize(t, server.URL+"/mcp", token); resp.StatusCode != 200 {
		t.Errorf("with a token: %s", resp.Status)
	}
	if resp := initialize(t, server.URL+"/mcp", token[:len(token)-8]+"AAAAAAAA"); resp.StatusCode != 401 {
		t.Errorf("with a wrong signature: %s", resp.Status)
	}
	if text := log.String(); strings.Contains(text, token[:20]) || strings.Contains(text, token[len(token)-40:len(token)-8]) {
		t.Errorf("the log:\n%s", text)
	}
}

// TestRotationUnderLoad: while an issuer rotates its keys no call fails, and each rotation
// costs one fetch.
func TestRotationUnderLoad(t *testing.T) {
	as := newAuthServer(t)
	cfg := jwtConfig(as)
	p := newProxy(t, cfg)
	defer p.Close()
	server := httptest.NewServer(p.Handler())
	defer server.Close()
	defer http.DefaultClient.CloseIdleConnections()
	if resp := initialize(t, server.URL+"/mcp", as.token()); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	const rotations = 4
	calls, over := make(chan struct{}, 1), make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if resp := initialize(t, server.URL+"/mcp", as.token()); resp.StatusCode != 200 {
					t.Errorf("%s: %s", resp.Status, resp.Header.Get("WWW-Authenticate"))
				}
				select {
				case calls <- struct{}{}:
				case <-over:
				}
			}
		})
	}
	for range rotations {
		for range 20 {
			<-calls
		}
		as.rotated.Add(1)
	}
	for range 20 {
		<-calls
	}
	close(over)
	wg.Wait()
	if n := as.fetches.Load(); n > 1+rotations {
		t.Errorf("%d fetches of keys for %d rotations", n, rotations)
	}
}

// TestCertificateOrToken: if both authenticate clients, one is enough. A wrong token is refused
// with any certificate.
func TestCertificateOrToken(t *testing.T) {
	ours, theirs, dir := newAuthority(t), newAuthority(t), t.TempDir()
	cert, key := ours.pair(t)
	s := newSecured(t, config.Config{
		Frontend: config.Frontend{
			TokenFile: put(t, filepath.Join(dir, "token"), []byte("secret")),
			TLS: config.ListenTLS{
				Cert: put(t, filepath.Join(dir, "cert"), cert), Key: put(t, filepath.Join(dir, "key"), key),
				ClientCA: put(t, filepath.Join(dir, "ca"), pemOf("CERTIFICATE", theirs.cert.Raw)),
			},
		},
	})
	for _, tt := range []struct {
		by     *authority
		token  string
		status int
	}{{theirs, "", 200}, {theirs, "secret", 200}, {nil, "secret", 200}, {nil, "", 401}, {theirs, "wrong", 401}, {nil, "wrong", 401}} {
		transport := &http.Transport{TLSClientConfig: ours.client(t, tt.by)}
		resp := initializeWith(t, &http.Client{Transport: transport}, "https://"+s.at+"/mcp", tt.token)
		if resp.StatusCode != tt.status {
			t.Errorf("certificate %v, token %q: %s, want %d", tt.by != nil, tt.token, resp.Status, tt.status)
		}
		transport.CloseIdleConnections()
	}
}

// A lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
