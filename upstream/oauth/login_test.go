package oauth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zalando/go-keyring"

	"github.com/mcp-proxy/mcp-proxy/internal/jsonrpc"
	"github.com/mcp-proxy/mcp-proxy/upstream/oauth/oauthtest"
)

// A person logs in with a browser, as soon as a page is shown.
type person struct {
	t     *testing.T
	dir   string // of the store
	log   *logs
	busy  sync.WaitGroup
	mu    sync.Mutex
	pages []string // that the browser has shown at the end
	asked int
	wait  chan struct{} // nil: at once
}

func newPerson(t *testing.T) *person {
	p := &person{t: t, dir: t.TempDir(), log: &logs{}}
	t.Cleanup(func() {
		p.busy.Wait()
		if strings.Contains(p.log.String(), oauthtest.Marked) {
			t.Errorf("a secret is in the log: %s", p.log)
		}
	})
	return p
}

func (p *person) show(prompt Prompt) {
	p.mu.Lock()
	p.asked++
	p.mu.Unlock()
	p.busy.Go(func() {
		if p.wait != nil {
			<-p.wait
		}
		p.browse(prompt.URL)
	})
}

// browse opens a page and follows redirects.
func (p *person) browse(page string) {
	resp, err := http.Get(page)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pages = append(p.pages, string(text))
}

func (p *person) prompts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

// login returns the login of a process of this person at a site. change may be nil.
func (p *person) login(s *oauthtest.Site, change func(*LoginConfig)) *Login {
	c := LoginConfig{
		Server: s.Endpoint(), Store: &Store{Dir: p.dir}, Client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, Command: "mcp-proxy login up",
		Show: p.show, NoBrowser: true, Log: slog.New(slog.NewTextHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if change != nil {
		change(&c)
	}
	l := NewLogin(c)
	p.t.Cleanup(l.Close)
	return l
}

// errRefusedHere is the error of a call that the server refuses.
var errRefusedHere = errors.New("refused")

// call sends a request as package remote does.
func (l *Login) call(ctx context.Context, method string) error {
	for round := 0; ; round++ {
		h := http.Header{}
		if err := l.Authorize(ctx, h); err != nil {
			return err
		}
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, l.config.Server, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`))
		req.Header = h
		resp, err := l.config.Client.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			return nil
		}
		if round == 3 {
			return errRefusedHere
		}
		again, err := l.Refused(ctx, resp, h)
		switch {
		case err != nil:
			return err
		case !again:
			return errRefusedHere
		}
	}
}

func (p *person) ok(l *Login, method string) {
	p.t.Helper()
	if err := l.call(p.t.Context(), method); err != nil {
		p.t.Errorf("%s: %v; the log is %s", method, err, p.log)
	}
}

// fails asserts that a call fails, and the texts of its error for clients and the log.
func (p *person) fails(l *Login, method, says string) {
	p.t.Helper()
	err := l.call(p.t.Context(), method)
	end := jsonrpc.EndOf(err, jsonrpc.Cause{})
	if err == nil || !strings.Contains(end.Words()+"; "+err.Error(), says) {
		p.t.Errorf("%s: got %v (%s), want %q", method, err, end.Words(), says)
	}
	if err != nil && strings.Contains(err.Error()+end.Words(), oauthtest.Marked) {
		p.t.Errorf("a secret is in the error %v", err)
	}
}

func (p *person) want(what string, got, want int) {
	p.t.Helper()
	if got != want {
		p.t.Errorf("%s: got %d, want %d; the log is %s", what, got, want, p.log)
	}
}

const listTools = "tools/list"

// A whole login; the next process finds the token.
func TestLogin(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{Scopes: []string{"a", "b"}, Offers: []string{"a", "offline_access"}, Says: true, Sends: "right"}), newPerson(t)
	p.ok(p.login(s, nil), listTools)
	asked, token := s.Asked(), s.Token()
	for name, want := range map[string]string{"resource": s.Endpoint(), "scope": "a b offline_access", "code_challenge_method": "S256", "response_type": "code"} {
		if got := asked.Get(name); got != want {
			t.Errorf("%s at the authorization endpoint: %q", name, got)
		}
	}
	if token.Get("resource") != s.Endpoint() || token.Get("redirect_uri") != asked.Get("redirect_uri") || !strings.HasPrefix(asked.Get("redirect_uri"), "http://127.0.0.1:") {
		t.Errorf("asked %v, then %v", asked, token.Get("redirect_uri"))
	}
	p.ok(p.login(s, nil), listTools)
	p.want("prompts", p.prompts(), 1)
	p.busy.Wait()
	if len(p.pages) != 1 || !strings.Contains(p.pages[0], "You are logged in") {
		t.Errorf("the browser shows %q", p.pages)
	}
}

// Bad servers and authorization servers, and where the login stops.
func TestBadSites(t *testing.T) {
	for name, tt := range map[string]struct {
		v         oauthtest.Variations
		says      string
		authorize int // requests at the authorization endpoint
	}{
		"resource":              {oauthtest.Variations{Resource: "https://evil.example.com/mcp"}, "another resource", 0},
		"metadata of another":   {oauthtest.Variations{IssuerName: "https://evil.example.com"}, "another issuer", 0},
		"no PKCE":               {oauthtest.Variations{NoPKCE: true}, "PKCE", 0},
		"registers nobody":      {oauthtest.Variations{Closed: true}, "registers no clients", 0},
		"wrong iss":             {oauthtest.Variations{Says: true, Sends: "https://evil.example.com"}, "RFC 9207", 1},
		"no iss":                {oauthtest.Variations{Says: true}, "RFC 9207", 1},
		"wrong iss, unpromised": {oauthtest.Variations{Sends: "https://evil.example.com"}, "RFC 9207", 1},
		"denied":                {oauthtest.Variations{Deny: true}, "access_denied", 1},
		"denied by another":     {oauthtest.Variations{Deny: true, Sends: "https://evil.example.com"}, "RFC 9207", 1},
		"a way we do not know":  {oauthtest.Variations{Methods: []string{"private_key_jwt"}}, "invalid_client", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := oauthtest.New(t, tt.v), newPerson(t)
			l := p.login(s, nil)
			p.fails(l, listTools, tt.says)
			p.fails(l, listTools, tt.says)
			p.want("authorize", s.Count("authorize"), tt.authorize)
			if tt.says != "invalid_client" {
				p.want("code", s.Count("code"), 0)
			}
			p.busy.Wait()
			if tt.authorize > 0 && !strings.Contains(strings.Join(p.pages, ""), "The login failed") {
				t.Errorf("the browser shows %q", p.pages)
			}
		})
	}
}

// An iss with an extra slash is wrong, and one that was not announced may be right.
func TestIssuerIsComparedAsText(t *testing.T) {
	i := &authServer{Issuer: "https://as.example.com", SendsIssuer: true}
	for iss, ok := range map[string]bool{"https://as.example.com": true, "https://as.example.com/": false, "https://AS.example.com": false, "https://as.example.com:443": false, "": false} {
		if err := checkAnswer(url.Values{"code": {"x"}, "iss": {iss}}, i); (err == nil) != ok {
			t.Errorf("%q: %v", iss, err)
		}
	}
	if err := checkAnswer(url.Values{"code": {"x"}, "iss": {i.Issuer}}, &authServer{Issuer: i.Issuer}); err != nil {
		t.Error(err)
	}
}

// Where metadata can be.
func TestWaysToTheIssuer(t *testing.T) {
	for name, v := range map[string]oauthtest.Variations{
		"no challenge":          {Silent: true},
		"at the root":           {Silent: true, Metadata: "/.well-known/oauth-protected-resource"},
		"anywhere":              {Metadata: "/here"},
		"OpenID":                {Openid: true},
		"of 2025-03-26":         {Metadata: "-", Silent: true},
		"public initialize":     {Public: []string{"initialize"}},
		"tokens live a moment":  {Life: 3 * time.Second},
		"no refresh token":      {Refresh: "none"},
		"needs a configured id": {Closed: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := oauthtest.New(t, v), newPerson(t)
			s.Know("me", "")
			l := p.login(s, func(c *LoginConfig) {
				if v.Closed {
					c.ClientID = "me"
				}
			})
			p.ok(l, "initialize")
			p.ok(l, listTools)
			p.want("prompts", p.prompts(), 1)
		})
	}
}

// An explicit login follows the challenge to a POST, if a GET has none.
func TestLogInWithoutGet(t *testing.T) {
	for name, public := range map[string][]string{"server/discover": nil, "ping": {"server/discover"}} {
		t.Run(name, func(t *testing.T) {
			s := oauthtest.New(t, oauthtest.Variations{NoGet: true, Metadata: "/here", Public: public, Wants: "read write"})
			other, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
			s.Move(other)
			if _, err := p.login(s, nil).LogIn(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			p.want("visits to the right authorization server", other.Count("authorize"), 1)
			if got := other.Asked().Get("scope"); got != "read write" {
				t.Errorf("asked for %q", got)
			}
		})
	}
}

// An answer is an http.RoundTripper. It returns nil for an answer that never comes.
type answer func(*http.Request) *http.Response

func (f answer) RoundTrip(r *http.Request) (*http.Response, error) {
	if resp := f(r); resp != nil {
		resp.Request, resp.Body = r, http.NoBody
		return resp, nil
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A server that holds the header of a GET, or metadata, does not hold up a login until the time of the person is over.
func TestSlowServers(t *testing.T) {
	metadata := "metadata of the server: it did not come within 20 s"
	for name, tt := range map[string]struct {
		challenged string // the method of the only request with an answer; "" for none
		took       time.Duration
	}{
		"the header of a GET": {http.MethodPost, 5*time.Second + fetchTimeout},
		"everything":          {"", 10*time.Second + fetchTimeout},
		"metadata":            {http.MethodGet, fetchTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				named := ""
				rt := answer(func(r *http.Request) *http.Response {
					if r.Method == tt.challenged && r.URL.Path == "/mcp" {
						return &http.Response{StatusCode: 401, Header: http.Header{"Www-Authenticate": {`Bearer resource_metadata="https://example.com/here"`}}}
					}
					named = r.URL.Path
					return nil
				})
				l := NewLogin(LoginConfig{Server: "https://example.com/mcp", Store: &Store{Dir: t.TempDir()}, Client: &http.Client{Transport: rt}})
				defer l.Close()
				began := time.Now()
				_, err := l.LogIn(t.Context(), false)
				if took := time.Since(began); err == nil || err.Error() != metadata || took != tt.took {
					t.Errorf("got %v after %v", err, took)
				}
				if want := tt.challenged != ""; (named == "/here") != want {
					t.Errorf("asked for %s at the end", named)
				}
			})
		})
	}
}

// The client id, in the order of the specification, and how a secret is sent.
func TestClients(t *testing.T) {
	const document = "https://client.example.com/mcp-proxy.json"
	for name, tt := range map[string]struct {
		v          oauthtest.Variations
		id, secret string
		client     string // at the authorization endpoint; "" for one that registers
		registered int
	}{
		"registered":               {oauthtest.Variations{}, "", "", "", 1},
		"registered, none":         {oauthtest.Variations{Methods: []string{"none"}}, "", "", "", 1},
		"registered, basic":        {oauthtest.Variations{Methods: []string{"client_secret_basic"}}, "", "", "", 1},
		"registered, post":         {oauthtest.Variations{Methods: []string{"client_secret_post"}}, "", "", "", 1},
		"given":                    {oauthtest.Variations{}, "me", "", "me", 0},
		"given, basic":             {oauthtest.Variations{Methods: []string{"client_secret_basic"}}, "me", oauthtest.Marked + "+/ =", "me", 0},
		"given, post":              {oauthtest.Variations{Methods: []string{"client_secret_post"}}, "me", oauthtest.Marked + "+/ =", "me", 0},
		"document":                 {oauthtest.Variations{Documents: true}, document, "", document, 0},
		"document where none is":   {oauthtest.Variations{}, document, "", "", 1},
		"given where documents go": {oauthtest.Variations{Documents: true}, "me", "", "me", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := oauthtest.New(t, tt.v), newPerson(t)
			s.Know("me", tt.secret)
			l := p.login(s, func(c *LoginConfig) {
				if c.ClientID = tt.id; tt.secret != "" {
					c.ClientSecretFile = file(t, tt.secret+"\n")
				}
			})
			p.ok(l, listTools)
			p.want("registrations", s.Count("register"), tt.registered)
			if got := s.Asked().Get("client_id"); tt.client != "" && got != tt.client {
				t.Errorf("client id %q", got)
			}
			s.Revoke(false)
			p.ok(l, listTools)
			p.want("refreshes", s.Count("refresh"), 1)
			p.want("wrong clients", s.Count("wrong client"), 0)
			text := string(must(os.ReadFile(l.config.Store.where(l.key))))
			if tt.secret != "" && strings.Contains(text, tt.secret) {
				t.Error("a configured secret is in the store")
			}
		})
	}
}

// Missing scopes are asked for in addition to those that we have. A server that always wants more gets a few rounds.
func TestStepUps(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{Scopes: []string{"read"}, Needs: map[string]string{"tools/call": "write", "prompts/get": "admin"}}), newPerson(t)
	l := p.login(s, nil)
	p.ok(l, listTools)
	p.ok(l, "tools/call")
	if got := s.Asked().Get("scope"); got != "read write" {
		t.Errorf("asked for %q", got)
	}
	p.ok(l, listTools)
	p.want("prompts", p.prompts(), 2)
	s.Vary(func(v *oauthtest.Variations) { v.Grants = "read" }) // less than requested
	for range 5 {
		if err := l.call(t.Context(), "prompts/get"); err != errRefusedHere {
			t.Errorf("got %v", err)
		}
	}
	p.want("prompts, since one that is not enough is not made again", p.prompts(), 3)
	for i := range 5 {
		s.Vary(func(v *oauthtest.Variations) { v.Needs["prompts/get"] = fmt.Sprint("more", i) })
		_ = l.call(t.Context(), "prompts/get")
	}
	p.want("prompts of a server that always wants more", p.prompts(), 1+maxStepUps)
	service := p.login(s, func(c *LoginConfig) { c.Show = nil })
	p.fails(service, "prompts/get", "needs a login: mcp-proxy login up --scope ")
}

// A request that lacks scopes does not end the login: others keep the token, also while a person is asked for more, and
// after a denial.
func TestStepUpKeepsTheToken(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{Scopes: []string{"read"}, Needs: map[string]string{"tools/call": "write"}, Public: []string{listTools}}), newPerson(t)
	if _, err := p.login(s, nil).LogIn(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	known := func(l *Login) {
		t.Helper()
		p.ok(l, listTools)
		if carried := s.Carried(); carried[len(carried)-1] == "" {
			t.Error("a request was sent without the token")
		}
	}
	service := p.login(s, func(c *LoginConfig) { c.Show = nil })
	p.fails(service, "tools/call", "needs a login: mcp-proxy login up --scope ")
	known(service)
	s.Vary(func(v *oauthtest.Variations) { v.Deny = true })
	p.wait = make(chan struct{})
	l := p.login(s, func(c *LoginConfig) { c.Wait = time.Millisecond })
	p.fails(l, "tools/call", "waits for you to log in")
	known(l)
	close(p.wait)
	for l.Asks() {
		time.Sleep(time.Millisecond)
	}
	known(l)
}

// Another authorization server gets nothing that belongs to the first one.
func TestMigration(t *testing.T) {
	s, other, p := oauthtest.New(t, oauthtest.Variations{}), oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	l := p.login(s, nil)
	p.ok(l, listTools)
	first := s.Asked().Get("client_id")
	s.Move(other)
	s.Revoke(true)
	p.ok(l, listTools)
	p.want("registrations at the other", other.Count("register"), 1)
	p.want("refreshes at the other", other.Count("refresh"), 0)
	if got := other.Asked().Get("client_id"); got == first || got == "" {
		t.Errorf("client id %q", got)
	}
}

// The id and secret of a configured client are for one authorization server. The person logs out to change it.
func TestMigrationOfAConfiguredClient(t *testing.T) {
	for _, id := range []string{"me", "https://me.example.com"} {
		t.Run(id, func(t *testing.T) { testMigrationOf(t, id) })
	}
}

func testMigrationOf(t *testing.T, id string) {
	s, other, p := oauthtest.New(t, oauthtest.Variations{}), oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	s.Know(id, oauthtest.Marked)
	other.Know(id, oauthtest.Marked)
	secret := file(t, oauthtest.Marked+"\n")
	l := p.login(s, func(c *LoginConfig) { c.ClientID, c.ClientSecretFile = id, secret })
	p.ok(l, listTools)
	s.Move(other)
	s.Revoke(true)
	p.fails(l, listTools, "names another authorization server than before")
	if _, err := l.LogIn(t.Context(), false); err == nil || !strings.Contains(err.Error(), "mcp-proxy logout") {
		t.Errorf("got %v", err)
	}
	p.want("visits to the other", other.Count("authorize"), 0)
	p.want("requests with the secret there", len(other.Token()), 0)
	if _, _, err := l.LogOut(t.Context()); err != nil && err != ErrNoLogin {
		t.Fatal(err)
	}
	if _, err := l.LogIn(t.Context(), false); err != nil {
		t.Error(err)
	}
	p.ok(l, listTools)
}

// If nobody can be prompted, a call fails with the command to run, and works after that.
func TestNobodyIsAsked(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	service := p.login(s, func(c *LoginConfig) { c.Show = nil })
	p.fails(service, listTools, "needs a login: mcp-proxy login up")
	p.want("fetches of metadata", s.Count("register"), 0)
	if _, err := p.login(s, nil).LogIn(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	p.ok(service, listTools)
	s.Revoke(true)
	p.fails(service, listTools, "needs a login: mcp-proxy login up")
	p.want("refreshes", s.Count("refresh"), 1)
	p.fails(service, listTools, "needs a login: mcp-proxy login up")
	p.want("refreshes, and a used token is not sent again", s.Count("refresh"), 1)
	if _, err := p.login(s, nil).LogIn(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	p.ok(service, listTools)
	p.want("prompts", p.prompts(), 2)
}

// A refreshed token is refreshed again when the server refuses it, without a prompt, but not if it was refused at once.
func TestRefusedAfterRefresh(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	l := p.login(s, nil)
	p.ok(l, listTools)
	if err := wait(t.Context(), l.renew(l.token)); err != nil { // as when it is due
		t.Fatal(err)
	}
	s.Revoke(false)
	p.ok(l, listTools)
	p.want("refreshes", s.Count("refresh"), 2)
	s.Revoke(false)
	p.fails(l, listTools, "refused")
	p.want("refreshes", s.Count("refresh"), 2)
	p.want("prompts", p.prompts(), 1)
}

// Five processes prompt once.
func TestOnePrompt(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	p.wait = make(chan struct{})
	var wg sync.WaitGroup
	for range 5 {
		l := p.login(s, nil)
		for range 3 {
			wg.Go(func() { p.ok(l, listTools) })
		}
	}
	for p.prompts() == 0 {
		time.Sleep(time.Millisecond)
	}
	close(p.wait)
	wg.Wait()
	p.want("prompts", p.prompts(), 1)
	p.want("registrations", s.Count("register"), 1)
}

// After a refusal of the person, the other processes do not prompt.
func TestOneDenial(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{Deny: true}), newPerson(t)
	var wg sync.WaitGroup
	for range 5 {
		l := p.login(s, nil)
		wg.Go(func() { p.fails(l, listTools, "access_denied") })
	}
	wg.Wait()
	p.want("prompts", p.prompts(), 1)
	s.Vary(func(v *oauthtest.Variations) { v.Deny = false })
	p.fails(p.login(s, nil), listTools, "the last login failed")
	if _, err := p.login(s, nil).LogIn(t.Context(), false); err != nil { // an explicit login works at once
		t.Error(err)
	}
	p.ok(p.login(s, nil), listTools)
	p.want("prompts", p.prompts(), 2)
}

// A request does not wait for ever, but the login continues, and calls Done.
func TestRequestsWaitWithinLimits(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	p.wait = make(chan struct{})
	done := make(chan struct{})
	l := p.login(s, func(c *LoginConfig) { c.Wait, c.Done = 50*time.Millisecond, func() { close(done) } })
	p.fails(l, listTools, "waits for you to log in")
	p.fails(l, listTools, "waits for you to log in")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.call(ctx, listTools); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(p.wait)
	<-done
	p.ok(l, listTools)
	p.want("prompts", p.prompts(), 1)
}

// A request that stops waiting as the login ends has not missed it.
func TestWaitEndsWithTheLogin(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	p.wait = make(chan struct{})
	l := p.login(s, func(c *LoginConfig) { c.Done = func() { t.Error("nobody has missed the login") } })
	ended, told := make(chan struct{}), make(chan struct{})
	waits := l.start("login", func(ctx context.Context) error {
		err := l.interact(ctx, attempt{})
		close(ended)
		<-told
		return err
	})
	close(p.wait)
	<-ended
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if again, err := l.ask(late, attempt{}); !again || err != nil {
		t.Errorf("got %v, %v", again, err)
	}
	close(told)
	if r := <-waits; r.Err != nil {
		t.Error(r.Err)
	}
}

// A token that was refreshed while a person is asked for more scopes is no login: a request that stops waiting has missed it.
func TestRefreshIsNoLogin(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	p.wait = make(chan struct{})
	done := make(chan struct{})
	l := p.login(s, func(c *LoginConfig) { c.Done = func() { close(done) } })
	asked := attempt{used: "old", more: true}
	l.start("login", func(ctx context.Context) error { return l.interact(ctx, asked) })
	for !l.Asks() {
		runtime.Gosched()
	}
	l.mu.Lock()
	l.token = &token{Access: "refreshed"}
	l.mu.Unlock()
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if again, err := l.ask(late, asked); again || err == nil {
		t.Errorf("got %v, %v", again, err)
	}
	close(p.wait)
	<-done
}

// Close ends a waiting login.
func TestCloseEndsALogin(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	shown := make(chan struct{})
	l := p.login(s, func(c *LoginConfig) { c.Show = func(Prompt) { close(shown) } })
	failed := make(chan error)
	go func() { failed <- l.call(t.Context(), listTools) }()
	<-shown
	if !l.Asks() {
		t.Error("nobody is being asked")
	}
	l.Close()
	if err := <-failed; err == nil {
		t.Error("the call has succeeded")
	}
	if l.Asks() {
		t.Error("somebody is being asked still")
	}
	p.ok(p.login(s, nil), listTools) // the lock is free, and nothing has failed
}

// Without a mention of OAuth, only a process that can prompt tries to discover it.
func TestServersWithoutOAuth(t *testing.T) {
	for name, elsewhere := range map[string]int{"nothing else is there": http.StatusNotFound, "it wants a key everywhere": http.StatusUnauthorized} {
		t.Run(name, func(t *testing.T) { testWithoutOAuth(t, elsewhere) })
	}
}

func testWithoutOAuth(t *testing.T, elsewhere int) {
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; r.URL.Path == "/mcp" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(elsewhere)
	}))
	defer srv.Close()
	p := newPerson(t)
	for _, show := range []func(Prompt){nil, p.show} {
		l := NewLogin(LoginConfig{Server: srv.URL + "/mcp", Implicit: true, Store: &Store{Dir: p.dir}, Client: srv.Client(), Show: show})
		for range 2 { // the second one does not take the result of the first one for a failed login
			if err := l.call(t.Context(), listTools); err != errRefusedHere {
				t.Errorf("got %v", err)
			}
		}
		l.Close()
		if show == nil && asked != 2 {
			t.Errorf("%d requests", asked)
		}
	}
	l := NewLogin(LoginConfig{Server: srv.URL + "/mcp", Implicit: true, Store: &Store{Dir: p.dir}, Client: srv.Client(), Show: p.show})
	defer l.Close()
	if _, err := l.LogIn(t.Context(), false); err == nil || !strings.Contains(err.Error(), "no authorization server") {
		t.Errorf("a login where there is none: %v", err)
	}
	p.want("prompts", p.prompts(), 0)
	if _, _, err := l.LogOut(t.Context()); err != ErrNoLogin {
		t.Errorf("a logout where there is none: %v", err)
	}
}

func TestDevice(t *testing.T) {
	t.Parallel()
	s, p := oauthtest.New(t, oauthtest.Variations{Device: true, Scopes: []string{"a"}}), newPerson(t)
	l := p.login(s, func(c *LoginConfig) {
		c.Show = func(prompt Prompt) {
			if prompt.Code != "ABCD-EFGH" || !strings.HasSuffix(prompt.URL, "/activate") {
				t.Errorf("got %v", prompt)
			}
			s.Allow()
		}
	})
	kept, err := l.LogIn(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(kept); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v", kept, info, err)
	}
	p.ok(p.login(s, func(c *LoginConfig) { c.Show = nil }), listTools)
	if _, err := p.login(oauthtest.New(t, oauthtest.Variations{}), nil).LogIn(t.Context(), true); err == nil {
		t.Error("a device code where there is none")
	}
}

func TestLogOut(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	l := p.login(s, nil)
	if _, _, err := l.LogOut(t.Context()); err != ErrNoLogin {
		t.Errorf("got %v", err)
	}
	p.ok(l, listTools)
	kept, unrevoked, err := p.login(s, nil).LogOut(t.Context())
	if err != nil || unrevoked != nil {
		t.Errorf("got %v, %v", unrevoked, err)
	}
	p.want("revocations", s.Count("revoke"), 2)
	if _, err := os.Stat(kept); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is there: %v", err)
	}
	p.fails(p.login(s, func(c *LoginConfig) { c.Show = nil }), listTools, "login needed")
	l = p.login(oauthtest.New(t, oauthtest.Variations{Deny: true}), nil)
	p.fails(l, listTools, "login needed")
	if kept, _, err := l.LogOut(t.Context()); err != ErrNoLogin {
		t.Errorf("after a login that has failed: %v", err)
	} else if _, err := os.Stat(kept); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what is left of it is there: %v", err)
	}
}

// A process notices that another one logs in, in again or out, although the server takes the old token and needs none.
func TestAnotherProcessLogsInOrOut(t *testing.T) {
	keyring.MockInit()
	for name, inKeyring := range map[string]bool{"file": false, "keyring": true} {
		t.Run(name, func(t *testing.T) {
			s, p := oauthtest.New(t, oauthtest.Variations{Public: []string{listTools}}), newPerson(t)
			in := func(c *LoginConfig) { c.Store = &Store{Dir: p.dir, Keyring: inKeyring} }
			service := p.login(s, func(c *LoginConfig) { in(c); c.Show = nil })
			carried := func() string {
				t.Helper()
				service.lookedAt = time.Time{} // as after a second
				p.ok(service, listTools)
				all := s.Carried()
				return all[len(all)-1]
			}
			logIn := func() {
				t.Helper()
				if _, err := p.login(s, in).LogIn(t.Context(), false); err != nil {
					t.Fatal(err)
				}
			}
			if got := carried(); got != "" {
				t.Errorf("before a login it sends %q", got)
			}
			logIn()
			first := carried()
			logIn()
			if second := carried(); first == "" || second == "" || second == first {
				t.Errorf("it sends %q, and after another login %q", first, second)
			}
			if _, _, err := p.login(s, in).LogOut(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := carried(); got != "" {
				t.Errorf("after a logout it sends %q", got)
			}
		})
	}
}

// Several accounts of a person at one server do not mix.
func TestAccounts(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	s.Know("one", "")
	s.Know("two", "")
	for _, id := range []string{"one", "two"} {
		p.ok(p.login(s, func(c *LoginConfig) { c.ClientID = id }), listTools)
		if got := s.Asked().Get("client_id"); got != id {
			t.Errorf("got %q", got)
		}
	}
	if carried := s.Carried(); carried[len(carried)-1] == carried[1] {
		t.Error("both have one token")
	}
}

// A client id that is given for a login stays with it: a service uses the login, and so does the next prompt, even after
// the authorization server has refused the client. Another authorization server does not get it.
func TestGivenClient(t *testing.T) {
	s, other, p := oauthtest.New(t, oauthtest.Variations{}), oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	s.Know("me", "")
	other.Know("me", "")
	given := p.login(s, func(c *LoginConfig) { c.GivenID = "me" })
	if _, err := given.LogIn(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	l := p.login(s, nil)
	p.ok(p.login(s, func(c *LoginConfig) { c.Show = nil }), listTools)
	p.ok(l, listTools)
	s.Revoke(false)
	p.ok(l, listTools)
	p.want("refreshes", s.Count("refresh"), 1)
	s.OnToken(func(w http.ResponseWriter, r *http.Request) bool {
		if r.PostForm.Get("grant_type") != "refresh_token" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"error":"invalid_client"}`)
		return true
	})
	s.Revoke(false)
	next := p.login(s, nil)
	p.ok(next, listTools)
	p.want("prompts", p.prompts(), 2)
	if got := s.Asked().Get("client_id"); got != "me" {
		t.Errorf("asked as %q", got)
	}
	p.want("registrations", s.Count("register"), 0)
	s.Move(other)
	p.fails(next, listTools, "names another authorization server than before")
	p.want("visits to the other", other.Count("authorize"), 0)
	if _, _, err := next.LogOut(t.Context()); err != ErrNoLogin { // the refresh has ended it
		t.Errorf("got %v", err)
	}
	if _, err := next.LogIn(t.Context(), false); err != nil || other.Asked().Get("client_id") == "me" {
		t.Errorf("after a logout: %v, asked as %q", err, other.Asked().Get("client_id"))
	}
}

// A login asks for the scopes of the one before, also when that has ended, unless it says what to ask for.
func TestScopesOfTheLastLogin(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{Scopes: []string{"base"}}), newPerson(t)
	logIn := func(want string, scopes ...string) {
		t.Helper()
		l := p.login(s, func(c *LoginConfig) { c.Scopes, c.OnlyScopes = scopes, scopes != nil })
		if _, err := l.LogIn(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if got := s.Asked().Get("scope"); got != want {
			t.Errorf("asked for %q, want %q", got, want)
		}
	}
	logIn("base")
	logIn("base more", "base", "more")
	logIn("base more")
	s.Revoke(true)
	p.fails(p.login(s, func(c *LoginConfig) { c.Show = nil }), listTools, "needs a login")
	p.want("refreshes", s.Count("refresh"), 1)
	logIn("base more")
	logIn("base", "base")
	logIn("base")
	logIn("base gone", "base", "gone")
	s.Vary(func(v *oauthtest.Variations) { v.Lacks = "gone" })
	s.Revoke(true)
	p.fails(p.login(s, nil), listTools, "invalid_scope")
	logIn("base")
}

func TestScopesFor(t *testing.T) {
	offline := []string{"offline_access"}
	for _, tt := range []struct {
		configured, challenge, resource, issuer, before []string
		want                                            string
	}{
		{nil, nil, nil, nil, nil, ""},
		{nil, nil, nil, offline, nil, ""},
		{nil, nil, nil, offline, []string{"e"}, "e offline_access"},
		{nil, nil, []string{"a", "b"}, nil, nil, "a b"},
		{nil, []string{"c"}, []string{"a", "b"}, offline, nil, "c offline_access"},
		{[]string{"d"}, []string{"c"}, []string{"a"}, nil, nil, "d"},
		{[]string{"d"}, []string{"c"}, []string{"a"}, nil, []string{"d", "e"}, "d e"},
		{[]string{"offline_access"}, nil, nil, offline, nil, "offline_access"},
	} {
		got := scopesFor(tt.configured, challenge{Scopes: tt.challenge}, &place{Scopes: tt.resource, Server: authServer{Scopes: tt.issuer}}, tt.before)
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%v: got %v", tt, got)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
