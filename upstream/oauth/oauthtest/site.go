// Package oauthtest has an MCP server with an authorization server, in one process, that
// tests can make behave well or badly.
package oauthtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
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
	Refresh    string        // tokens: "none" are given, or "fixed" stay as they are; "": each is good once, and the second use ends the grant
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

// Carried returns what the requests to the server carried.
func (s *Site) Carried() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.carried)
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
