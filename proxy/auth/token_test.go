package auth

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/internal/identity"
	"github.com/mcp-proxy/mcp-proxy/proxy/frontend"
)

// serve sends a request with one header through a front end with c, to an unknown path.
func serve(c *Clients, name, value string) *httptest.ResponseRecorder {
	h := &frontend.HTTP{Guard: frontend.Guard{Clients: NewCurrent(c)}}
	defer h.Close()
	r := httptest.NewRequest(http.MethodPost, "http://localhost/nowhere", nil)
	if value != "" {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// passed is the status of a request that was let in.
const passed = http.StatusNotFound

// fixed is a token that never changes.
func fixed(name, text string) *Token {
	return NewToken(name, func() (string, error) { return text, nil }, slog.New(slog.DiscardHandler))
}

func TestToken(t *testing.T) {
	c := &Clients{Tokens: []*Token{fixed("default", "secret")}}
	const plain, invalid = `Bearer realm="mcp-proxy"`, `Bearer realm="mcp-proxy", error="invalid_token"`
	const missing, wrong = "a bearer token is required", "the bearer token is wrong"
	tests := []struct {
		header string
		status int
		asks   string
		says   string
	}{
		{"Bearer secret", passed, "", ""},
		{"bearer secret", passed, "", ""},
		{"", http.StatusUnauthorized, plain, missing},
		{"Basic secret", http.StatusUnauthorized, plain, missing},
		{"Bearer", http.StatusUnauthorized, plain, missing},
		{"Bearer  ", http.StatusUnauthorized, plain, missing},
		{"Bearer Secret", http.StatusUnauthorized, invalid, wrong},
		{"Bearer secretsecret", http.StatusUnauthorized, invalid, wrong},
	}
	for _, tt := range tests {
		w := serve(c, "Authorization", tt.header)
		if w.Code != tt.status || w.Header().Get("WWW-Authenticate") != tt.asks {
			t.Errorf("Authorization %q: %d, %q; want %d, %q", tt.header,
				w.Code, w.Header().Get("WWW-Authenticate"), tt.status, tt.asks)
		}
		if body := w.Body.String(); !strings.Contains(body, tt.says) {
			t.Errorf("Authorization %q: %s; want %q", tt.header, body, tt.says)
		}
	}
}

// The token is read for each request. An unreadable one lets nobody in.
func TestTokenIsReadAgain(t *testing.T) {
	var token string
	var failure error
	read := func() (string, error) { return token, failure }
	c := &Clients{Tokens: []*Token{NewToken("default", read, slog.New(slog.DiscardHandler))}}
	if err := (&frontend.Guard{Clients: NewCurrent(c), Listen: []string{":8080"}}).Check(); err != nil {
		t.Errorf("it asks for a token: %v", err)
	}
	expect := func(given string, status int) {
		t.Helper()
		w := serve(c, "Authorization", "Bearer "+given)
		if w.Code != status || strings.Contains(w.Body.String(), "secret") {
			t.Errorf("token %q for %q: %d %s, want %d", given, token, w.Code, w.Body, status)
		}
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Authorization", "Bearer "+given)
		if who, _ := c.Identify(r); status == passed && who.String() != "token:default" {
			t.Errorf("the principal is %q", who)
		}
	}
	token = "one"
	expect("one", passed)
	token = "two"
	expect("one", http.StatusUnauthorized)
	expect("two", passed)
	failure = errors.New("the file secret is gone")
	expect("two", http.StatusServiceUnavailable)
	expect("", http.StatusServiceUnavailable)
	token, failure = "", nil
	expect("", http.StatusServiceUnavailable)
}

// TestKnownTokenIsReadAlone: a request with a token that is known costs one look at one file, however many there are.
func TestKnownTokenIsReadAlone(t *testing.T) {
	reads := make(map[string]int)
	tokens := map[string]string{"a": "one", "b": "two", "c": "three"}
	c := &Clients{}
	for _, name := range []string{"a", "b", "c"} {
		read := func() (string, error) { reads[name]++; return tokens[name], nil }
		c.Tokens = append(c.Tokens, NewToken(name, read, slog.New(slog.DiscardHandler)))
	}
	expect := func(given, principal, want string) {
		t.Helper()
		clear(reads)
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Authorization", "Bearer "+given)
		if who, why := c.Identify(r); who.String() != principal || fmt.Sprint(reads) != want {
			t.Errorf("%q is %v, %v, with reads of %v; want %s, %s", given, who, why, reads, principal, want)
		}
	}
	expect("two", "token:b", "map[a:1 b:1 c:1]")
	expect("two", "token:b", "map[b:1]")
	tokens["a"], tokens["b"] = "two", "new" // it was b's, and nobody has looked since
	expect("two", "token:a", "map[a:1 b:2 c:1]")
	expect("two", "token:a", "map[a:1]")
	expect("new", "token:b", "map[b:1]")
}

// TestSeveralTokens: each token is a principal. An unreadable one does not affect the others.
func TestSeveralTokens(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	var failure error
	c := &Clients{Tokens: []*Token{
		fixed("default", "a"), fixed("ci", "bb"),
		NewToken("ops", func() (string, error) { return "ccc", failure }, log),
	}}
	expect := func(given, principal string) {
		t.Helper()
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Header.Set("Authorization", "Bearer "+given)
		switch who, why := c.Identify(r); {
		case principal == "" && (why == nil || why.Code != "invalid_token"):
			t.Errorf("%q is %v, %v; want it refused", given, who, why)
		case principal != "" && (why != nil || who.Principal != identity.Principal{Kind: identity.Token, Name: principal}):
			t.Errorf("%q is %v, %v; want token %s", given, who, why, principal)
		}
	}
	all := func(ops string) {
		t.Helper()
		expect("a", "default")
		expect("bb", "ci")
		expect("ccc", ops)
		expect("dd", "")
	}
	all("ops")
	failure = errors.New("no such file")
	all("")
	all("")
	failure = nil
	all("ops")
	failure = fmt.Errorf("ops: %w", &os.PathError{Op: "open", Path: "ops", Err: syscall.EMFILE})
	expect("a", "default")
	for _, given := range []string{"ccc", "dd"} { // the token of ops, or not: nobody knows now
		if w := serve(c, "Authorization", "Bearer "+given); w.Code != http.StatusServiceUnavailable {
			t.Errorf("%q: %d while too many files are open", given, w.Code)
		}
	}
	failure = nil
	all("ops")
	if n := strings.Count(text.String(), "\n"); n != 4 {
		t.Errorf("%d lines, want one when each begins and one when it is over:\n%s", n, &text)
	}
}
