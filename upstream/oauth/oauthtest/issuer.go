package oauthtest

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// A grant is one consent of a person.
type grant struct {
	scope, client, resource, challenge, redirect string
	revoked                                      bool
}

type issued struct {
	*grant
	expires time.Time
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

// authorize is the authorization endpoint. The person agrees at once.
func (s *Site) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts["authorize"]++
	s.asked = append(s.asked, q)
	_, known := s.clients[q.Get("client_id")]
	if !known && !(s.v.Documents && strings.HasPrefix(q.Get("client_id"), "https://")) || q.Get("code_challenge_method") != "S256" || q.Get("response_type") != "code" {
		s.counts["wrong client"]++
		http.Error(w, "unknown client", http.StatusBadRequest) // the browser shows it, and is not redirected
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
	switch {
	case s.v.Deny:
		back.Set("error", "access_denied")
		back.Set("error_description", Marked)
	case s.v.Lacks != "" && slices.Contains(strings.Fields(q.Get("scope")), s.v.Lacks):
		back.Set("error", "invalid_scope")
	default:
		code := s.secretLocked("code")
		s.codes[code] = &grant{cmp.Or(s.v.Grants, q.Get("scope")), q.Get("client_id"), q.Get("resource"), q.Get("code_challenge"), q.Get("redirect_uri"), false}
		back.Set("code", code)
	}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

// clientLocked returns the client of a request, "" if it is not authenticated.
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
	if s.v.Refresh != "none" && !(s.v.Refresh == "fixed" && form.Get("grant_type") == "refresh_token") {
		next := s.secretLocked("refresh")
		s.refresh[next], said["refresh_token"] = g, next
	}
	reply(w, 200, said)
}

// grantLocked returns the grant of a token request, nil for none.
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
		if g := s.used[token]; g != nil { // it was stolen: revoke the grant
			s.counts["reuse"]++
			g.revoked = true
			return nil
		}
		g := s.refresh[token]
		if g != nil && s.v.Refresh != "fixed" {
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

func (s *Site) granted(token string) (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, ok := s.access[token]
	if !ok || i.revoked || time.Now().After(i.expires) {
		return "", false
	}
	return i.scope, true
}
