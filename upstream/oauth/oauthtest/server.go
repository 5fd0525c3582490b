package oauthtest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
)

// mcp is a server of the legacy era with one tool.
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

// allowed reports whether a request has a token for its method, and refuses it otherwise.
func (s *Site) allowed(w http.ResponseWriter, r *http.Request, method string) bool {
	carried := r.Header.Get("Authorization")
	s.mu.Lock()
	v, issuer := s.v, s
	if s.issuerAt != nil {
		issuer = s.issuerAt
	}
	s.carried = append(s.carried, carried)
	s.mu.Unlock()
	if slices.Contains(v.Public, method) || v.NoGet && r.Method == http.MethodGet {
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
	if !ok && v.Wants != "" {
		challenge += fmt.Sprintf(`, scope="%s"`, v.Wants)
	}
	if ok {
		status = http.StatusForbidden
		challenge += fmt.Sprintf(`, error="insufficient_scope", scope="%s"`, need)
	}
	w.Header().Set("WWW-Authenticate", challenge)
	w.WriteHeader(status)
	return false
}
