// Package oauthtest has an MCP server with an authorization server, in one process, that
// tests can make behave well or badly.
package oauthtest

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Marked is in each secret that a Site makes up: it must be in no log and no error.
const Marked = "s3cr3t"

// Variations are how a Site behaves. The zero value is a good one.
type Variations struct {
	Silent     bool              // challenges have no parameters
	Metadata   string            // path of the server's metadata; "" is the path-inserted one, "-" is none
	Resource   string            // in that metadata; "" is right
	Openid     bool              // the issuer's metadata are those of OpenID
	IssuerName string            // in its metadata; "" is right
	Says       bool              // it promises to send iss
	Sends      string            // as iss; "" is nothing, "right" is right
	Scopes     []string          // of the server
	Offers     []string          // scopes of the issuer
	Needs      map[string]string // scopes by method
	Public     []string          // methods for everybody
	NoPKCE     bool
	Methods    []string // how clients prove themselves; nil: it does not say
	Documents  bool     // it takes client id metadata documents
	Closed     bool     // it registers nobody
	Device     bool
	Life       time.Duration // of tokens; zero: an hour
	Deny       bool          // nobody is let in
	Grants     string        // scopes, whatever is asked for; "" grants what is
	NoRefresh  bool
	Fixed      bool // refresh tokens stay as they are; else each is good once, and the second use ends the grant
}

// A grant is what a person has allowed once.
type grant struct {
	scope, client, resource, challenge, redirect string
	revoked                                      bool
}

type issued struct {
	*grant
	expires time.Time
}

// A Site is an MCP server at /mcp, and its authorization server.
type Site struct {
	*httptest.Server
	t testing.TB

	mu       sync.Mutex
	v        Variations
	clients  map[string]string // id to secret
	codes    map[string]*grant
	access   map[string]issued
	refresh  map[string]*grant
	used     map[string]*grant // refresh tokens
	devices  map[string]*grant // allowed by Allow
	counts   map[string]int
	asked    []url.Values // at the authorization endpoint
	tokens   []url.Values // requests at the token endpoint
	carried  []string     // by requests to the server
	made     int
	onToken  func(w http.ResponseWriter, r *http.Request) bool
	issuerAt *Site // another one is the issuer now
}

// New returns a Site that runs until the end of the test.
func New(t testing.TB, v Variations) *Site {
	s := &Site{
		t: t, v: v, clients: map[string]string{}, codes: map[string]*grant{}, access: map[string]issued{},
		refresh: map[string]*grant{}, used: map[string]*grant{}, devices: map[string]*grant{}, counts: map[string]int{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", s.metadata)
	mux.HandleFunc("/authorize", s.authorize)
	mux.HandleFunc("/token", s.token)
	mux.HandleFunc("/register", s.register)
	mux.HandleFunc("/revoke", s.revoke)
	mux.HandleFunc("/device", s.device)
	mux.HandleFunc("/mcp", s.mcp)
	s.Server = httptest.NewUnstartedServer(mux)
	s.Start() // not before: handlers read s.Server, and a client of an earlier test may come to the same port
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// Endpoint is the URL of the MCP server.
func (s *Site) Endpoint() string { return s.URL + "/mcp" }

// Vary changes how the Site behaves.
func (s *Site) Vary(change func(*Variations)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.v)
}

// Move makes another Site the authorization server of this one, which takes only its tokens.
func (s *Site) Move(to *Site) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.issuerAt = to
}

// OnToken has f answer requests at the token endpoint for which it returns true.
func (s *Site) OnToken(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onToken = f
}

// Count is how often something was done: "register", "authorize", "code", "refresh",
// "reuse", "revoke", "device", "wrong client".
func (s *Site) Count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[what]
}

// Asked returns the parameters of the last request at the authorization endpoint.
func (s *Site) Asked() url.Values { return last(s, s.asked) }

// Token returns those of the last one at the token endpoint.
func (s *Site) Token() url.Values { return last(s, s.tokens) }

func last(s *Site, all []url.Values) url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(all) == 0 {
		return url.Values{}
	}
	return all[len(all)-1]
}

// Revoke makes all tokens bad: those for access, or all.
func (s *Site) Revoke(all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.access)
	if all {
		clear(s.refresh)
	}
}

// Allow lets a person's code for a device in.
func (s *Site) Allow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.devices {
		g.revoked = false
	}
}

func reply(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}

func (s *Site) secretLocked(kind string) string {
	s.made++
	return fmt.Sprintf("%s-%s-%d-%d", Marked, kind, s.made, time.Now().UnixNano())
}

func (s *Site) metadata(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	issuer := s.URL
	if s.issuerAt != nil {
		issuer = s.issuerAt.URL
	}
	at := "/.well-known/oauth-authorization-server"
	if s.v.Openid {
		at = "/.well-known/openid-configuration"
	}
	switch r.URL.Path {
	case cmp.Or(s.v.Metadata, "/.well-known/oauth-protected-resource/mcp"):
		reply(w, 200, map[string]any{"resource": cmp.Or(s.v.Resource, s.URL+"/mcp"), "authorization_servers": []string{issuer}, "scopes_supported": s.v.Scopes})
	case at:
		m := map[string]any{
			"issuer": cmp.Or(s.v.IssuerName, s.URL), "authorization_endpoint": s.URL + "/authorize", "token_endpoint": s.URL + "/token",
			"revocation_endpoint": s.URL + "/revoke", "scopes_supported": s.v.Offers, "token_endpoint_auth_methods_supported": s.v.Methods,
			"client_id_metadata_document_supported": s.v.Documents, "authorization_response_iss_parameter_supported": s.v.Says,
		}
		if !s.v.NoPKCE {
			m["code_challenge_methods_supported"] = []string{"S256"}
		}
		if !s.v.Closed {
			m["registration_endpoint"] = s.URL + "/register"
		}
		if s.v.Device {
			m["device_authorization_endpoint"] = s.URL + "/device"
		}
		reply(w, 200, m)
	default:
		http.NotFound(w, r)
	}
}

func (s *Site) register(w http.ResponseWriter, r *http.Request) {
	var ask struct {
		Method string `json:"token_endpoint_auth_method"`
	}
	_ = json.NewDecoder(r.Body).Decode(&ask)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts["register"]++
	id := fmt.Sprintf("client-%d-%s", len(s.clients)+1, r.Host)
	said := map[string]any{"client_id": id, "token_endpoint_auth_method": ask.Method}
	s.clients[id] = ""
	if ask.Method != "none" {
		s.clients[id] = s.secretLocked("client")
		said["client_secret"], said["client_secret_expires_at"] = s.clients[id], 0
	}
	reply(w, 201, said)
}

// Know makes a client known that does not register.
func (s *Site) Know(id, secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[id] = secret
}

// Forget makes all clients unknown.
func (s *Site) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.clients)
}

// authorize is where browsers are sent. The person agrees at once.
func (s *Site) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts["authorize"]++
	s.asked = append(s.asked, q)
	_, known := s.clients[q.Get("client_id")]
	if !known && !(s.v.Documents && strings.HasPrefix(q.Get("client_id"), "https://")) || q.Get("code_challenge_method") != "S256" || q.Get("response_type") != "code" {
		s.counts["wrong client"]++
		http.Error(w, "unknown client", http.StatusBadRequest) // which a browser shows, and nothing comes back
		return
	}
	back := url.Values{"state": {q.Get("state")}}
	switch s.v.Sends {
	case "":
	case "right":
		back.Set("iss", s.URL)
	default:
		back.Set("iss", s.v.Sends)
	}
	if s.v.Deny {
		back.Set("error", "access_denied")
		back.Set("error_description", Marked)
	} else {
		code := s.secretLocked("code")
		s.codes[code] = &grant{cmp.Or(s.v.Grants, q.Get("scope")), q.Get("client_id"), q.Get("resource"), q.Get("code_challenge"), q.Get("redirect_uri"), false}
		back.Set("code", code)
	}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

// clientLocked returns who makes a request, "" if that is not proved as it should be.
func (s *Site) clientLocked(r *http.Request) string {
	id, secret, basic := r.BasicAuth()
	method := "client_secret_basic"
	if basic {
		id, _ = url.QueryUnescape(id)
		secret, _ = url.QueryUnescape(secret)
	} else {
		id, secret, method = r.PostForm.Get("client_id"), r.PostForm.Get("client_secret"), "client_secret_post"
	}
	want, known := s.clients[id]
	if want == "" {
		method = "none"
	}
	if !known && s.v.Documents && strings.HasPrefix(id, "https://") {
		known = true
	}
	if !known || secret != want || s.v.Methods != nil && !slices.Contains(s.v.Methods, method) {
		s.counts["wrong client"]++
		return ""
	}
	return id
}

func (s *Site) token(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	s.mu.Lock()
	on := s.onToken
	s.tokens = append(s.tokens, r.PostForm)
	s.mu.Unlock()
	if on != nil && on(w, r) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	form := r.PostForm
	id := s.clientLocked(r)
	if id == "" {
		reply(w, 401, map[string]string{"error": "invalid_client", "error_description": Marked})
		return
	}
	g := s.grantLocked(form)
	if g == nil || g.client != id || g.revoked || form.Get("resource") != g.resource {
		reply(w, 400, map[string]string{"error": "invalid_grant", "error_description": Marked + form.Encode()})
		return
	}
	if g.challenge == "pending" {
		reply(w, 400, map[string]string{"error": "authorization_pending"})
		return
	}
	life := s.v.Life
	if life == 0 {
		life = time.Hour
	}
	a := s.secretLocked("access")
	s.access[a] = issued{g, time.Now().Add(life)}
	said := map[string]any{"access_token": a, "token_type": "Bearer", "expires_in": max(int(life/time.Second), 1), "scope": g.scope}
	if !s.v.NoRefresh && !(s.v.Fixed && form.Get("grant_type") == "refresh_token") {
		next := s.secretLocked("refresh")
		s.refresh[next], said["refresh_token"] = g, next
	}
	reply(w, 200, said)
}

// grantLocked returns what was granted to who makes a request, nil for nothing.
func (s *Site) grantLocked(form url.Values) *grant {
	switch form.Get("grant_type") {
	case "authorization_code":
		s.counts["code"]++
		g := s.codes[form.Get("code")]
		delete(s.codes, form.Get("code"))
		sum := sha256.Sum256([]byte(form.Get("code_verifier")))
		if g == nil || base64.RawURLEncoding.EncodeToString(sum[:]) != g.challenge || g.redirect != form.Get("redirect_uri") {
			return nil
		}
		return g
	case "refresh_token":
		s.counts["refresh"]++
		token := form.Get("refresh_token")
		if g := s.used[token]; g != nil { // somebody has stolen it: all is over
			s.counts["reuse"]++
			g.revoked = true
			return nil
		}
		g := s.refresh[token]
		if g != nil && !s.v.Fixed {
			delete(s.refresh, token)
			s.used[token] = g
		}
		return g
	case "urn:ietf:params:oauth:grant-type:device_code":
		g := s.devices[form.Get("device_code")]
		if g != nil && g.revoked {
			return &grant{client: g.client, resource: g.resource, challenge: "pending"}
		}
		return g
	}
	return nil
}

func (s *Site) device(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts["device"]++
	code := s.secretLocked("device")
	s.devices[code] = &grant{scope: r.PostForm.Get("scope"), client: r.PostForm.Get("client_id"), resource: r.PostForm.Get("resource"), revoked: true}
	reply(w, 200, map[string]any{"device_code": code, "user_code": "ABCD-EFGH", "verification_uri": s.URL + "/activate", "expires_in": 60, "interval": 1})
}

func (s *Site) revoke(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts["revoke"]++
	if s.clientLocked(r) == "" {
		reply(w, 401, map[string]string{"error": "invalid_client"})
		return
	}
	token := r.PostForm.Get("token")
	if g := s.refresh[token]; g != nil {
		g.revoked = true
	}
	delete(s.access, token)
}

// mcp is the server: one tool, in the legacy era.
func (s *Site) mcp(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	var m struct {
		ID     json.RawMessage
		Method string
	}
	_ = json.Unmarshal(text, &m)
	if !s.allowed(w, r, m.Method) {
		return
	}
	result := map[string]any{}
	switch {
	case r.Method == http.MethodGet:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	case m.ID == nil:
		w.WriteHeader(http.StatusAccepted)
		return
	case m.Method == "server/discover":
		reply(w, 200, map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": map[string]any{"code": -32601, "message": "unknown"}})
		return
	case m.Method == "initialize":
		result = map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{"tools": map[string]any{}}, "serverInfo": map[string]string{"name": "site", "version": "1"}}
	case m.Method == "tools/list":
		result["tools"] = []any{map[string]any{"name": "add", "inputSchema": map[string]string{"type": "object"}}}
	case m.Method == "tools/call":
		result["content"] = []any{}
	}
	reply(w, 200, map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": result})
}

// Carried returns what the requests to the server carried.
func (s *Site) Carried() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.carried)
}

func (s *Site) granted(token string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.access[token]
	if !ok || i.revoked || time.Now().After(i.expires) {
		return "", false
	}
	return i.scope, true
}

// allowed answers a request whose token is not good for a method.
func (s *Site) allowed(w http.ResponseWriter, r *http.Request, method string) bool {
	carried := r.Header.Get("Authorization")
	s.mu.Lock()
	v, issuer := s.v, s
	if s.issuerAt != nil {
		issuer = s.issuerAt
	}
	s.carried = append(s.carried, carried)
	s.mu.Unlock()
	if slices.Contains(v.Public, method) {
		return true
	}
	scope, ok := issuer.granted(strings.TrimPrefix(carried, "Bearer "))
	need := v.Needs[method]
	enough := need == "" || slices.Contains(strings.Fields(scope), need)
	if ok && enough {
		return true
	}
	challenge, status := "Bearer", http.StatusUnauthorized
	if !v.Silent {
		challenge += fmt.Sprintf(` resource_metadata="%s%s"`, s.URL, cmp.Or(v.Metadata, "/.well-known/oauth-protected-resource/mcp"))
	}
	if ok {
		status = http.StatusForbidden
		challenge += fmt.Sprintf(`, error="insufficient_scope", scope="%s"`, need)
	}
	w.Header().Set("WWW-Authenticate", challenge)
	w.WriteHeader(status)
	return false
}
