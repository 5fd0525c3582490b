package oauth

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/upstream/remote"
)

// marked is a part of every secret. No log and no error may contain it.
const marked = "s3cr3t"

const (
	metadataPath = "/.well-known/oauth-protected-resource/mcp"
	issuerPath   = "/.well-known/oauth-authorization-server"
)

// A world is an MCP server and its authorization server, at one address.
type world struct {
	*httptest.Server
	t   *testing.T
	log *logs

	// For tests to set, under mu.
	mu          sync.Mutex
	life        time.Duration                                     // announced, of tokens; zero: none
	expires     time.Duration                                     // the real one; zero: for ever
	needs       map[string]string                                 // scopes by method
	methods     string                                            // of client authentication, as JSON
	onToken     func(w http.ResponseWriter, r *http.Request) bool // true: it has answered
	onCall      func(w http.ResponseWriter, r *http.Request, method string) bool
	challenge   string // parameters
	noMetadata  bool
	issued      map[string]issue
	requests    []url.Values // to the token endpoint
	basic       []string     // users and passwords there
	carried     []string     // headers of requests to the server
	revokedAll  bool
	tokenNumber int
}

// An issue is an issued token.
type issue struct {
	scope   string
	expires time.Time
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, log: &logs{}, issued: map[string]issue{}, needs: map[string]string{}, methods: `["client_secret_basic"]`}
	mux := http.NewServeMux()
	mux.HandleFunc(metadataPath, func(rw http.ResponseWriter, r *http.Request) {
		if w.noMetadata {
			http.NotFound(rw, r)
			return
		}
		reply(rw, fmt.Sprintf(`{"resource":"%s/mcp","authorization_servers":["%s"],"scopes_supported":["base"]}`, w.URL, w.URL))
	})
	mux.HandleFunc(issuerPath, func(rw http.ResponseWriter, _ *http.Request) {
		reply(rw, fmt.Sprintf(`{"issuer":"%s","token_endpoint":"%s/token","token_endpoint_auth_methods_supported":%s}`, w.URL, w.URL, w.methods))
	})
	mux.HandleFunc("/token", w.token)
	mux.HandleFunc("/mcp", w.mcp)
	w.Server = httptest.NewServer(mux)
	t.Cleanup(func() {
		w.CloseClientConnections()
		w.Close()
		if strings.Contains(w.log.String(), marked) {
			t.Errorf("a secret is in the log: %s", w.log)
		}
	})
	return w
}

func reply(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "application/json")
	io.WriteString(w, text)
}

// token is the token endpoint.
func (w *world) token(rw http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	w.mu.Lock()
	w.requests = append(w.requests, r.PostForm)
	user, password, _ := r.BasicAuth()
	w.basic = append(w.basic, user+":"+password)
	on := w.onToken
	w.mu.Unlock()
	if on != nil && on(rw, r) {
		return
	}
	reply(rw, w.issue(r.PostForm.Get("scope")))
}

// issue returns the answer with a new token.
func (w *world) issue(scope string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tokenNumber++
	name := fmt.Sprintf("%s-token-%d", marked, w.tokenNumber)
	i := issue{scope: scope}
	if w.expires > 0 {
		i.expires = time.Now().Add(w.expires)
	}
	w.issued[name] = i
	life := ""
	if w.life > 0 {
		life = fmt.Sprintf(`,"expires_in":%d`, int(w.life.Seconds()))
	}
	return fmt.Sprintf(`{"access_token":"%s","token_type":"bearer"%s}`, name, life)
}

// revoke revokes all tokens.
func (w *world) revoke() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.issued)
}

// fetches returns the number of token requests.
func (w *world) fetches() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.requests)
}

// allowed reports whether a request has a token for its method, and refuses it otherwise.
func (w *world) allowed(rw http.ResponseWriter, r *http.Request, method string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	carried := r.Header.Get("Authorization")
	w.carried = append(w.carried, carried)
	i, known := w.issued[strings.TrimPrefix(carried, "Bearer ")]
	challenge := fmt.Sprintf(`Bearer resource_metadata="%s%s"`, w.URL, metadataPath)
	if w.challenge != "" {
		challenge += ", " + w.challenge
	}
	switch need := w.needs[method]; {
	case w.revokedAll, !known, !i.expires.IsZero() && time.Now().After(i.expires):
		rw.Header().Set("WWW-Authenticate", challenge)
		rw.WriteHeader(http.StatusUnauthorized)
		return false
	case need != "" && !slices.Contains(strings.Fields(i.scope), need):
		rw.Header().Set("WWW-Authenticate", challenge+fmt.Sprintf(`, error="insufficient_scope", scope="%s"`, need))
		rw.WriteHeader(http.StatusForbidden)
		return false
	}
	return true
}

// mcp is the server, of either era.
func (w *world) mcp(rw http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	var m struct {
		ID     json.RawMessage
		Method string
	}
	_ = json.Unmarshal(text, &m)
	w.mu.Lock()
	on := w.onCall
	w.mu.Unlock()
	if on != nil && on(rw, r, m.Method) || !w.allowed(rw, r, m.Method) {
		return
	}
	switch {
	case r.Method == http.MethodGet:
		rw.WriteHeader(http.StatusMethodNotAllowed)
	case m.ID == nil:
		rw.WriteHeader(http.StatusAccepted)
	case m.Method == "initialize":
		rw.Header().Set("Mcp-Session-Id", "one")
		reply(rw, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{}}}`, m.ID))
	default:
		reply(rw, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, m.ID))
	}
}

// file returns a file with that text.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// credentials returns those of a client with a secret.
func (w *world) credentials() *ClientCredentials {
	return w.closed(&ClientCredentials{ClientID: "me", SecretFile: file(w.t, marked+"-password\n")})
}

// closed completes credentials, and closes them at the end.
func (w *world) closed(c *ClientCredentials) *ClientCredentials {
	c.Server, c.Client, c.Log = w.URL+"/mcp", w.Client(), slog.New(slog.NewTextHandler(w.log, nil))
	w.t.Cleanup(c.Close)
	return c
}

// A caller is a session of the legacy era with the server.
type caller struct {
	t    *testing.T
	conn jsonrpc.Conn
	mu   sync.Mutex
	open map[int64]chan *jsonrpc.Message
}

// server returns the server as remote sees it.
func (w *world) server(c remote.Credentials) *remote.Server {
	s := &remote.Server{Name: "up", URL: w.URL + "/mcp", Credentials: c, StopGrace: 100 * time.Millisecond, Log: slog.New(slog.NewTextHandler(w.log, nil))}
	w.t.Cleanup(s.Close)
	return s
}

// dial begins a session and initializes it.
func dial(t *testing.T, s *remote.Server) *caller {
	t.Helper()
	c := connect(t, s)
	if m := c.call(0, "initialize"); m.Error != nil {
		t.Fatalf("initialize: %s", m.Error)
	}
	if err := c.conn.Send(jsonrpc.NewNotification("notifications/initialized", nil)); err != nil {
		t.Fatal(err)
	}
	return c
}

// connect begins a session without initialize.
func connect(t *testing.T, s *remote.Server) *caller {
	t.Helper()
	conn, err := s.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c := &caller{t: t, conn: conn, open: map[int64]chan *jsonrpc.Message{}}
	done := make(chan struct{})
	go func() { // until Close
		defer close(done)
		for {
			m, err := conn.Recv()
			if err != nil {
				return
			}
			id, _ := m.ID.Int()
			c.mu.Lock()
			answer := c.open[id]
			c.mu.Unlock()
			if answer != nil && m.IsResponse() {
				answer <- m
			}
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
	return c
}

// call sends a request and returns its answer.
func (c *caller) call(id int64, method string) *jsonrpc.Message {
	c.t.Helper()
	answer := make(chan *jsonrpc.Message, 1)
	c.mu.Lock()
	c.open[id] = answer
	c.mu.Unlock()
	params := []byte(`{}`)
	if method == "initialize" {
		params = []byte(`{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`)
	}
	if err := c.conn.Send(jsonrpc.NewRequest(jsonrpc.IntID(id), method, params)); err != nil {
		c.t.Error(err)
		return &jsonrpc.Message{}
	}
	select {
	case m := <-answer:
		if bytes.Contains(m.Error, []byte(marked)) {
			c.t.Errorf("a secret is in an error: %s", m.Error)
		}
		return m
	case <-time.After(20 * time.Second):
		c.t.Errorf("no answer to %s", method)
		return &jsonrpc.Message{}
	}
}

// ok asserts that a call succeeds.
func (c *caller) ok(id int64, method string) {
	c.t.Helper()
	if m := c.call(id, method); m.Result == nil {
		c.t.Errorf("%s %d: %s", method, id, m.Error)
	}
}

// fails asserts that a call fails with these texts.
func (c *caller) fails(id int64, method string, says ...string) {
	c.t.Helper()
	m := c.call(id, method)
	for _, text := range says {
		if !strings.Contains(string(m.Error), text) {
			c.t.Errorf("%s %d: got %s, want %q", method, id, m.Error, text)
		}
	}
}

// logs collect the log.
type logs struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// newKey returns a private key as PEM, and its public part.
func newKey(t *testing.T) (string, *ecdsa.PublicKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), &key.PublicKey
}

// header returns the header that credentials set.
func header(ctx context.Context, c *ClientCredentials) (string, error) {
	h := http.Header{}
	err := c.Authorize(ctx, h)
	return h.Get("Authorization"), err
}
