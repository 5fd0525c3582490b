package oauth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
)

// A program gets a token when the server first refuses a request, and sends it from then on.
func TestSecret(t *testing.T) {
	for _, how := range []string{"client_secret_basic", "client_secret_post", ""} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t)
			w.methods = `["` + how + `"]`
			if how == "" {
				w.methods = `null`
			}
			c := dial(t, w.server(w.credentials()))
			for id := range int64(3) {
				c.ok(id+1, "ping")
			}
			if w.fetches() != 1 {
				t.Errorf("%d tokens were fetched", w.fetches())
			}
			form := w.requests[0]
			password := marked + "-password"
			want, basic := "client_credentials  base "+w.URL+"/mcp", "me:"+password
			if how == "client_secret_post" {
				want, basic = "client_credentials "+password+" base "+w.URL+"/mcp", ":"
			}
			if got := strings.Join([]string{form.Get("grant_type"), form.Get("client_secret"), form.Get("scope"), form.Get("resource")}, " "); got != want || w.basic[0] != basic {
				t.Errorf("the request for a token is %q, %q", got, w.basic[0])
			}
			if w.carried[0] != "" || strings.Count(strings.Join(w.carried, " "), "Bearer "+marked+"-token-1") != len(w.carried)-1 {
				t.Errorf("requests carried %q", w.carried)
			}
		})
	}
}

// With a configured token endpoint, the token is fetched before the first request, without metadata. How the endpoint
// takes the secret is found out once.
func TestTokenURL(t *testing.T) {
	w := newWorld(t)
	w.noMetadata = true
	w.onToken = func(rw http.ResponseWriter, r *http.Request) bool {
		if _, _, basic := r.BasicAuth(); basic {
			rw.WriteHeader(http.StatusUnauthorized)
			return true
		}
		return false
	}
	cc := w.credentials()
	cc.TokenURL, cc.Scopes = w.URL+"/token", []string{"a", "b"}
	c := dial(t, w.server(cc))
	c.ok(1, "ping")
	w.revoke()
	c.ok(2, "ping")
	if w.fetches() != 3 || w.carried[0] == "" || w.requests[2].Get("scope") != "a b" || w.requests[2].Get("resource") != w.URL+"/mcp" {
		t.Errorf("requests for tokens %q, carried %q", w.requests, w.carried)
	}
}

// If both endpoint and scopes are configured, an endpoint that refuses the parameter resource is asked without it.
func TestNoResource(t *testing.T) {
	for _, scopes := range [][]string{{"api://docs/.default"}, nil} {
		w := newWorld(t)
		w.onToken = func(rw http.ResponseWriter, r *http.Request) bool {
			if r.PostForm.Has("resource") {
				rw.Header().Set("Content-Type", "application/json")
				rw.WriteHeader(http.StatusBadRequest)
				fmt.Fprint(rw, `{"error":"invalid_target"}`)
			}
			return r.PostForm.Has("resource")
		}
		key, _ := newKey(t)
		c := w.closed(&ClientCredentials{ClientID: "me", KeyFile: file(t, key), TokenURL: w.URL + "/token", Scopes: scopes})
		_, err := header(t.Context(), c)
		if scopes == nil {
			if err == nil || w.fetches() != 1 {
				t.Errorf("%v after %d requests", err, w.fetches())
			}
			continue
		}
		if err != nil || w.requests[0].Get("client_assertion") == w.requests[1].Get("client_assertion") {
			t.Errorf("%v, requests %q", err, w.requests)
		}
	}
}

// A private key signs an assertion for each token, with the issuer as audience.
func TestPrivateKey(t *testing.T) {
	w := newWorld(t)
	key, _ := newKey(t)
	c := dial(t, w.server(w.closed(&ClientCredentials{ClientID: "me", KeyFile: file(t, key)})))
	c.ok(1, "ping")
	w.revoke()
	c.ok(2, "ping")
	var ids []string
	for _, form := range w.requests {
		if form.Get("client_assertion_type") != "urn:ietf:params:oauth:client-assertion-type:jwt-bearer" || form.Get("client_id") != "me" || form.Has("client_secret") {
			t.Errorf("the request for a token is %q", form)
		}
		var claims struct {
			Iss, Sub, Aud, Jti string
			Iat, Exp           int64
		}
		payload, err := base64.RawURLEncoding.DecodeString(strings.Split(form.Get("client_assertion"), ".")[1])
		if err == nil {
			err = json.Unmarshal(payload, &claims)
		}
		if err != nil || claims.Iss != "me" || claims.Sub != "me" || claims.Aud != w.URL || claims.Exp-claims.Iat > 300 {
			t.Errorf("the assertion is %s, %v", payload, err)
		}
		ids = append(ids, claims.Jti)
	}
	if len(ids) != 2 || ids[0] == ids[1] {
		t.Errorf("assertions %q", ids)
	}
}

// An assertion is read again for each token, and needs no client id.
func TestAssertionFile(t *testing.T) {
	w := newWorld(t)
	path := file(t, marked+"-assertion-1\n")
	c := dial(t, w.server(w.closed(&ClientCredentials{AssertionFile: path})))
	info, _ := os.Stat(path)
	if err := os.WriteFile(path, []byte(marked+"-assertion-2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = os.Chtimes(path, info.ModTime(), info.ModTime()) // hide the change
	w.revoke()
	c.ok(1, "ping")
	for i, form := range w.requests {
		if want := fmt.Sprint(marked, "-assertion-", i+1); form.Get("client_assertion") != want || form.Has("client_id") {
			t.Errorf("request %d for a token is %q", i, form)
		}
	}
}

// Concurrent callers share one fetch, even if the first of them leaves.
func TestOneFetchForAll(t *testing.T) {
	w := newWorld(t)
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	w.onToken = func(http.ResponseWriter, *http.Request) bool {
		asked <- struct{}{}
		<-answer
		return false
	}
	cc := w.credentials()
	cc.TokenURL = w.URL + "/token"
	first, leave := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := header(first, cc)
		gone <- err
	}()
	<-asked
	leave()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the first got %v", err)
	}
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if got, err := header(t.Context(), cc); err != nil || got != "Bearer "+marked+"-token-1" {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
	close(answer)
	wg.Wait()
	if w.fetches() != 1 {
		t.Errorf("%d tokens were fetched", w.fetches())
	}
}

// A hundred calls that are refused at the same time cost one token, and all are answered.
func TestRevoked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cc := w.credentials()
	c := dial(t, w.server(cc))
	for round := range int64(3) {
		w.revoke()
		var wg sync.WaitGroup
		for id := range int64(100) {
			wg.Go(func() { c.ok(1000*(round+1)+id, "ping") })
		}
		wg.Wait()
		if w.fetches() != 2+int(round) {
			t.Errorf("%d tokens were fetched after round %d", w.fetches(), round)
		}
		cc.mu.Lock()
		cc.next = time.Time{} // the last round was a while ago
		cc.mu.Unlock()
	}
}

// With tokens that live for a second, no call fails.
func TestExpiryUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.life, w.expires = time.Second, time.Second
	c := dial(t, w.server(w.credentials()))
	var wg sync.WaitGroup
	end := time.Now().Add(3500 * time.Millisecond)
	for worker := range int64(8) {
		wg.Go(func() {
			for id := worker*1_000_000 + 1; time.Now().Before(end); id++ {
				c.ok(id, "ping")
			}
		})
	}
	wg.Wait()
	if n := w.fetches(); n < 2 || n > 9 { // five on a machine that has the time
		t.Errorf("%d tokens were fetched", n)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	refused := 0
	for _, carried := range w.carried {
		if carried == "" {
			refused++
		}
	}
	if refused != 1 { // the first, which found out where tokens come from
		t.Errorf("%d requests carried no token", refused)
	}
}

// A server that refuses every token causes no loop.
func TestFreshTokenRefused(t *testing.T) {
	w := newWorld(t)
	c := dial(t, w.server(w.credentials()))
	w.mu.Lock()
	w.revokedAll = true
	w.mu.Unlock()
	for id := range int64(50) {
		c.fails(id+1, "ping", "rejected our credentials (HTTP 401)", `"retryable":false`)
	}
	if n := w.fetches(); n > 6 { // two within the first second, three within three
		t.Errorf("%d tokens were fetched", n)
	}
	if n := strings.Count(w.log.String(), "level=WARN"); n != 1 {
		t.Errorf("the log is %s", w.log)
	}
}

// Missing scopes are asked for in addition to those that we have.
func TestStepUp(t *testing.T) {
	w := newWorld(t)
	w.needs = map[string]string{"a": "scope-a", "b": "scope-b"}
	c := dial(t, w.server(w.credentials()))
	c.ok(1, "a")
	c.ok(2, "b")
	c.ok(3, "a")
	var scopes []string
	for _, form := range w.requests {
		scopes = append(scopes, form.Get("scope"))
	}
	if !slices.Equal(scopes, []string{"base", "base scope-a", "base scope-a scope-b"}) {
		t.Errorf("asked for %q", scopes)
	}
}

// Scopes that are refused or never suffice cause no loop, and affect no other request.
func TestStepUpInVain(t *testing.T) {
	for _, granted := range []bool{false, true} {
		w := newWorld(t)
		c := dial(t, w.server(w.credentials()))
		w.mu.Lock()
		w.onToken = func(rw http.ResponseWriter, r *http.Request) bool {
			if !granted {
				rw.Header().Set("Content-Type", "application/json")
				rw.WriteHeader(http.StatusBadRequest)
				fmt.Fprint(rw, `{"error":"invalid_scope"}`)
			}
			return !granted
		}
		round := 0
		w.onCall = func(rw http.ResponseWriter, _ *http.Request, method string) bool {
			if method != "more" {
				return false
			}
			w.mu.Lock()
			round++
			rw.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer error="insufficient_scope", scope="s%d"`, round))
			w.mu.Unlock()
			rw.WriteHeader(http.StatusForbidden)
			return true
		}
		w.mu.Unlock()
		c.fails(1, "more", "rejected our credentials (HTTP 403)")
		c.ok(2, "ping")
		if n, most := w.fetches(), map[bool]int{false: 2, true: 4}[granted]; n != most {
			t.Errorf("granted %v: %d tokens were fetched", granted, n)
		}
	}
}

// A 403 without scopes costs no token.
func TestForbidden(t *testing.T) {
	w := newWorld(t)
	c := dial(t, w.server(w.credentials()))
	w.mu.Lock()
	w.onCall = func(rw http.ResponseWriter, _ *http.Request, _ string) bool {
		rw.WriteHeader(http.StatusForbidden)
		return true
	}
	w.mu.Unlock()
	c.fails(1, "ping", "refused the request (HTTP 403)")
	if w.fetches() != 1 {
		t.Errorf("%d tokens were fetched", w.fetches())
	}
}

// Errors of the token endpoint are reported in our own words, and it is asked again after a pause.
func TestNoToken(t *testing.T) {
	const bad = "no token from the authorization server"
	for _, tt := range []struct {
		name      string
		status    int
		answer    string
		says      string
		retryable bool
	}{
		{"secret is wrong", 401, `{"error":"invalid_client","error_description":"` + marked + `"}`, "rejected our credentials (HTTP 401 invalid_client)", false},
		{"unknown error", 400, `{"error":"` + marked + `"}`, "rejected our credentials (HTTP 400)", false},
		{"no JSON", 400, marked, "rejected our credentials (HTTP 400)", false},
		{"redirect", 307, ``, "rejected our credentials (HTTP 307)", false},
		{"overloaded", 503, marked, "answered HTTP 503", true},
		{"later", 429, marked, "answered HTTP 429", true},
		{"no JSON, though well", 200, marked, bad, false},
		{"no token", 200, `{}`, bad, false},
		{"kind", 200, `{"access_token":"` + marked + `","token_type":"mac"}`, bad, false},
		{"control characters", 200, `{"access_token":"` + marked + `\r\nX: y","token_type":"Bearer"}`, bad, false},
		{"huge", 200, `{"access_token":"` + marked + strings.Repeat("x", maxToken) + `","token_type":"Bearer"}`, bad, false},
		{"endless", 200, `{"access_token":"` + marked + strings.Repeat("x", 2<<20), bad, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.onToken = func(rw http.ResponseWriter, r *http.Request) bool {
				rw.Header().Set("Content-Type", "application/json")
				rw.Header().Set("Location", "/mcp")
				rw.WriteHeader(tt.status)
				fmt.Fprint(rw, tt.answer)
				return true
			}
			cc := w.credentials()
			cc.TokenURL = w.URL + "/token"
			for range 20 {
				_, err := header(t.Context(), cc)
				end, ok := errors.AsType[*jsonrpc.ClosedError](err)
				if !ok {
					t.Fatalf("error %v", err)
				}
				message := end.Wire(jsonrpc.CodeInternalError, "up", jsonrpc.NotSent)
				if !strings.Contains(message.Message, tt.says) || end.Lasting == tt.retryable || end.Cause != jsonrpc.CauseNoToken {
					t.Errorf("%q, %+v", message.Message, end)
				}
				if text := message.Message + err.Error(); strings.Contains(text, marked) || strings.Contains(text, w.URL) {
					t.Errorf("too much is said: %s", text)
				}
			}
			if n := w.fetches(); n > 2*2 { // each tries two ways to send the secret
				t.Errorf("the token endpoint was asked %d times", n)
			}
		})
	}
}

// age makes the token due, and expire after left.
func age(c *ClientCredentials, left time.Duration) {
	old := c.tokens.current.Load()
	c.tokens.current.Store(&token{Access: old.Access, Asked: old.Asked, Expires: time.Now().Add(left), renewAt: time.Now().Add(-time.Second)})
}

// While the authorization server is down a valid token stays in use.
func TestIssuerIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	cc := w.credentials()
	c := dial(t, w.server(cc))
	w.mu.Lock()
	w.onToken = func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.WriteHeader(http.StatusBadGateway)
		return true
	}
	w.mu.Unlock()
	age(cc, time.Hour)
	for id := int64(1); !strings.Contains(w.log.String(), "cannot renew the token"); id++ {
		c.ok(id, "ping")
	}
	c.ok(-1, "ping")
	age(cc, 0)
	c.fails(-2, "ping", "authentication failed: the authorization server answered HTTP 502", `"cause":"no token"`)
	w.mu.Lock()
	w.onToken = nil
	w.mu.Unlock()
	for deadline := time.Now().Add(20 * time.Second); c.call(-3, "ping").Result == nil; {
		if time.Now().After(deadline) {
			t.Fatal("it does not come back")
		}
	}
}

// Errors name an unreadable file, and contain nothing of it.
func TestBadFiles(t *testing.T) {
	for name, c := range map[string]*ClientCredentials{
		"missing":  {ClientID: "me", SecretFile: "/nowhere/secret"},
		"empty":    {ClientID: "me", SecretFile: file(t, "")},
		"no key":   {ClientID: "me", KeyFile: file(t, marked)},
		"no file":  {ClientID: "me", AssertionFile: t.TempDir()},
		"huge":     {ClientID: "me", SecretFile: file(t, strings.Repeat(marked, 100_000))},
		"half PEM": {ClientID: "me", KeyFile: file(t, "-----BEGIN PRIVATE KEY-----\n"+marked+"\n-----END PRIVATE KEY-----")},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.closed(c).TokenURL = w.URL + "/token"
			_, err := header(t.Context(), c)
			end := jsonrpc.EndOf(err, jsonrpc.Cause{})
			if !end.Lasting || !strings.Contains(end.Words(), "cannot be read") || !strings.Contains(err.Error(), c.secret.Path) || strings.Contains(err.Error()+end.Words(), marked) {
				t.Errorf("%+v, %v", end, err)
			}
			if w.fetches() > 0 {
				t.Error("the token endpoint was asked")
			}
		})
	}
}

// A server cannot make us send credentials to another authorization server.
func TestIssuerStays(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	cc := w.credentials()
	c := dial(t, w.server(cc))
	moved := newSite(t, nil)
	moved.docs = map[string]string{"/prm": fmt.Sprintf(`{"resource":"%s/mcp","authorization_servers":["%s"]}`, w.URL, other.URL)}
	w.mu.Lock()
	w.onToken = func(rw http.ResponseWriter, _ *http.Request) bool { // so that it is discovered again
		rw.WriteHeader(http.StatusNotFound)
		return true
	}
	w.revokedAll = true
	w.onCall = func(rw http.ResponseWriter, _ *http.Request, _ string) bool {
		rw.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+moved.URL+`/prm"`)
		rw.WriteHeader(http.StatusUnauthorized)
		return true
	}
	w.mu.Unlock()
	c.fails(1, "ping", "authentication failed")
	cc.tokens.mu.Lock()
	cc.tokens.next = time.Time{} // the pause after a failure is over
	cc.tokens.mu.Unlock()
	c.fails(2, "ping", "another authorization server than before")
	if other.fetches() > 0 {
		t.Error("the other one was asked")
	}
}

// Close fails a waiting request, and leaves nothing behind.
func TestClose(t *testing.T) {
	w := newWorld(t)
	asked := make(chan struct{})
	w.onToken = func(_ http.ResponseWriter, r *http.Request) bool {
		close(asked)
		<-r.Context().Done()
		return true
	}
	cc := w.credentials()
	cc.TokenURL = w.URL + "/token"
	failed := make(chan error)
	go func() {
		_, err := header(t.Context(), cc)
		failed <- err
	}()
	<-asked
	cc.Close()
	if err := <-failed; !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
}

func BenchmarkAuthorize(b *testing.B) {
	c := &ClientCredentials{TokenURL: "https://as.invalid/"}
	c.prepare()
	c.tokens.current.Store(newProgramToken("x", nil, time.Hour))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		h := http.Header{}
		for pb.Next() {
			_ = c.Authorize(b.Context(), h)
		}
	})
}

// A token that expires on its way is replaced, however short its life was.
func TestExpiredOnItsWay(t *testing.T) {
	w := newWorld(t)
	cc := w.credentials()
	cc.TokenURL = w.URL + "/token"
	carried, err := header(t.Context(), cc)
	if err != nil {
		t.Fatal(err)
	}
	expired := newProgramToken(strings.TrimPrefix(carried, "Bearer "), nil, 0)
	expired.Expires = time.Now()
	cc.tokens.current.Store(expired)
	cc.mu.Lock()
	cc.next = time.Now().Add(time.Hour)
	cc.mu.Unlock()
	again, err := cc.Refused(t.Context(), &http.Response{StatusCode: 401}, http.Header{"Authorization": {carried}})
	if !again || err != nil || w.fetches() != 2 {
		t.Errorf("%v, %v after %d fetches", again, err, w.fetches())
	}
}
