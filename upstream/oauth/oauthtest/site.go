// Package oauthtest has an MCP server with an authorization server for tests, which can make them misbehave.
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

// Marked is a part of every secret of a Site. No log and no error may contain it.
const Marked = "s3cr3t"

// Variations are the behaviour of a Site. The zero value is correct.
type Variations struct {
	Silent     bool              // challenges have no parameters
	NoGet      bool              // the server takes no GET, with or without a token
	Wants      string            // scope of its challenges to requests without a token
	Metadata   string            // path of the server's metadata; "" is the path-inserted one, "-" is none
	Resource   string            // in that metadata; "" is right
	Openid     bool              // the issuer's metadata are those of OpenID
	IssuerName string            // in its metadata; "" is right
	Says       bool              // it announces iss
	Sends      string            // as iss; "" is nothing, "right" is right
	Scopes     []string          // of the server
	Offers     []string          // scopes of the issuer
	Needs      map[string]string // scopes by method
	Public     []string          // methods for everybody
	NoPKCE     bool
	Methods    []string // of client authentication; nil: it does not say
	Documents  bool     // it accepts client id metadata documents
	Closed     bool     // it has no registration
	Device     bool
	Life       time.Duration // of tokens; zero: an hour
	Deny       bool          // the person refuses
	Lacks      string        // a scope that the issuer refuses
	Grants     string        // scopes, whatever the request; "": the requested ones
	Refresh    string        // tokens: "none", or "fixed" ones; "": each is valid once, and a second use ends the grant
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
	issuerAt *Site // the issuer, if it is another Site
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

// Move makes another Site the authorization server of this one, which then accepts only its tokens.
func (s *Site) Move(to *Site) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.issuerAt = to
}

// OnToken lets f answer requests at the token endpoint; f returns whether it did.
func (s *Site) OnToken(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onToken = f
}

// Count returns how often something happened: "register", "authorize", "code", "refresh", "reuse", "revoke", "device",
// "wrong client".
func (s *Site) Count(what string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts[what]
}

// Asked returns the parameters of the last request at the authorization endpoint.
func (s *Site) Asked() url.Values { return last(s, s.asked) }

// Token returns the parameters of the last request at the token endpoint.
func (s *Site) Token() url.Values { return last(s, s.tokens) }

func last(s *Site, all []url.Values) url.Values {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(all) == 0 {
		return url.Values{}
	}
	return all[len(all)-1]
}

// Revoke revokes all access tokens, or all tokens.
func (s *Site) Revoke(all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.access)
	if all {
		clear(s.refresh)
	}
}

// Allow confirms the device codes.
func (s *Site) Allow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.devices {
		g.revoked = false
	}
}

// Know adds a client that does not register.
func (s *Site) Know(id, secret string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients[id] = secret
}

// Forget removes all clients.
func (s *Site) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.clients)
}

// Carried returns the headers Authorization of the requests to the server.
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
