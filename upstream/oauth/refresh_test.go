package oauth

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-proxy/mcp-proxy/internal/secretfile"
	"github.com/mcp-proxy/mcp-proxy/upstream/oauth/oauthtest"
)

// age makes the token in the store due or expired.
func (p *person) age(l *Login, left time.Duration) {
	p.t.Helper()
	err := l.config.Store.update(p.t.Context(), l.key, func(r *record) error {
		r.Token.Granted, r.Token.Expires = time.Now().Add(-time.Hour), time.Now().Add(left)
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// A due token is refreshed once, for all requests of all processes.
func TestRefreshOnce(t *testing.T) {
	t.Parallel()
	for name, left := range map[string]time.Duration{"due": 30 * time.Second, "expired": -time.Second} {
		t.Run(name, func(t *testing.T) {
			s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
			first := p.login(s, nil)
			p.ok(first, listTools)
			for round := range 3 {
				p.age(first, left)
				var wg sync.WaitGroup
				for range 5 {
					l := p.login(s, nil)
					for range 3 {
						wg.Go(func() { p.ok(l, listTools) })
					}
				}
				wg.Wait()
				for s.Count("refresh") < round+1 { // requests do not wait while the old one is valid
					time.Sleep(time.Millisecond)
				}
				p.want("refreshes", s.Count("refresh"), round+1)
			}
			p.want("tokens that were sent twice", s.Count("reuse"), 0)
			p.want("prompts", p.prompts(), 1)
			if got := s.Token().Get("resource"); got != s.Endpoint() {
				t.Errorf("the refresh was for %q", got)
			}
		})
	}
}

// A refresh token that is not replaced is kept.
func TestFixedRefreshToken(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{Refresh: "fixed"}), newPerson(t)
	l := p.login(s, nil)
	p.ok(l, listTools)
	for range 3 {
		s.Revoke(false)
		p.ok(p.login(s, nil), listTools)
	}
	p.want("refreshes", s.Count("refresh"), 3)
	p.want("prompts", p.prompts(), 1)
}

// A refresh continues when its caller leaves. A slow one delays no request with a valid token.
func TestRefreshIsNobodys(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	p.ok(p.login(s, nil), listTools)
	l := p.login(s, nil)
	p.age(l, 30*time.Second)
	reached, release := make(chan struct{}), make(chan struct{})
	s.OnToken(func(http.ResponseWriter, *http.Request) bool {
		close(reached)
		<-release
		return false
	})
	p.ok(l, listTools)
	<-reached
	p.ok(l, listTools)
	s.Revoke(false) // so that a call waits for the refresh
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { left <- l.call(ctx, listTools) }()
	cancel()
	if err := <-left; err == nil {
		t.Error("a call that was cancelled has succeeded")
	}
	close(release)
	for s.Count("refresh") == 0 {
		time.Sleep(time.Millisecond)
	}
	p.ok(l, listTools)
	p.want("refreshes", s.Count("refresh"), 1)
}

// A refresh token that was sent is used up: Close waits for the answer, however slow, and for the store.
func TestCloseWaitsForARefresh(t *testing.T) {
	t.Parallel()
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	p.ok(p.login(s, nil), listTools)
	l := p.login(s, nil)
	p.age(l, 30*time.Second)
	reached := make(chan struct{})
	s.OnToken(func(http.ResponseWriter, *http.Request) bool {
		close(reached)
		time.Sleep(2 * closePause)
		return false
	})
	p.ok(l, listTools)
	<-reached
	l.Close()
	s.OnToken(nil)
	s.Revoke(false)
	p.ok(p.login(s, func(c *LoginConfig) { c.Show = nil }), listTools)
	p.want("refreshes", s.Count("refresh"), 2)
	p.want("tokens that were sent twice", s.Count("reuse"), 0)
}

// An authorization server that does not answer holds up Close for a while only.
func TestOutlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		longer, stop := outlive(ctx, time.Second)
		defer stop()
		time.Sleep(time.Hour)
		cancel()
		ended := time.Now()
		<-longer.Done()
		if after := time.Since(ended); after != time.Second {
			t.Errorf("it ended after %v", after)
		}
	})
}

// If the authorization server is down, requests with a valid token succeed, and not every request asks it. When it is
// back the login works again.
func TestRefreshFails(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	p.ok(p.login(s, nil), listTools)
	l := p.login(s, func(c *LoginConfig) { c.Show = nil })
	p.age(l, 30*time.Second)
	asked := make(chan struct{}, 100)
	s.OnToken(func(w http.ResponseWriter, _ *http.Request) bool {
		asked <- struct{}{}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, oauthtest.Marked)
		return true
	})
	for range 10 {
		p.ok(l, listTools)
	}
	<-asked
	p.age(l, -time.Second)
	r := must(l.config.Store.load(l.key))
	l.remember(r, r.Token)
	p.fails(l, listTools, "the login could not be refreshed")
	if n := len(asked); n > 2 {
		t.Errorf("%d requests to a server that is down", n+1)
	}
	s.OnToken(nil)
	p.ok(p.login(s, func(c *LoginConfig) { c.Show = nil }), listTools)
	p.want("tokens that were sent twice", s.Count("reuse"), 0)
}

// If the store cannot be written, the login goes on from memory with the new refresh token, and is saved later.
func TestRefreshWithAFullDisk(t *testing.T) {
	for name, later := range map[string]func(*person, *Login){
		"saved after a second": func(p *person, l *Login) {
			l.lookedAt = time.Time{}
			p.ok(l, listTools)
			for l.config.Store.isUnsaved(l.key) {
				time.Sleep(time.Millisecond)
			}
		},
		"saved by Close": func(_ *person, l *Login) { l.Close() },
	} {
		t.Run(name, func(t *testing.T) { testFullDisk(t, later) })
	}
}

func testFullDisk(t *testing.T, later func(*person, *Login)) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	p.ok(p.login(s, nil), listTools)
	var full atomic.Bool
	full.Store(true)
	l := p.login(s, func(c *LoginConfig) {
		c.Show = nil
		c.Store.replace = func(path string, text []byte) error {
			if full.Load() {
				return errors.New("no space left on device")
			}
			return secretfile.Replace(path, text)
		}
	})
	for range 3 { // the second needs the refresh token of the first
		s.Revoke(false)
		l.renewed = ""
		p.ok(l, listTools)
	}
	p.want("warnings", strings.Count(p.log.String(), "no space left"), 1)
	full.Store(false)
	later(p, l)
	s.Revoke(false)
	p.ok(p.login(s, func(c *LoginConfig) { c.Show = nil }), listTools)
	p.want("tokens that were sent twice", s.Count("reuse"), 0)
	p.want("refreshes", s.Count("refresh"), 4)
}

// If the authorization server has forgotten its clients, we register again.
func TestForgottenClient(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	p.ok(p.login(s, nil), listTools)
	s.Forget()
	s.Revoke(true)
	p.ok(p.login(s, nil), listTools)
	p.want("registrations", s.Count("register"), 2)
	p.want("prompts", p.prompts(), 2)
}

// A configured client whose secret changes at the authorization server first keeps its login.
func TestRefreshWithANewSecret(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	s.Know("me", "first")
	secret := file(t, "first\n")
	configure := func(c *LoginConfig) { c.ClientID, c.ClientSecretFile = "me", secret }
	p.ok(p.login(s, configure), listTools)
	s.Know("me", "second")
	s.Revoke(false)
	p.fails(p.login(s, func(c *LoginConfig) { configure(c); c.Show = nil }), listTools, "the login could not be refreshed")
	if err := os.WriteFile(secret, []byte("second\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.ok(p.login(s, func(c *LoginConfig) { configure(c); c.Show = nil }), listTools)
	p.want("prompts", p.prompts(), 1)
}

// Requests with secrets follow no redirect.
func TestTokenRequestsAreNotRedirected(t *testing.T) {
	s, other, p := oauthtest.New(t, oauthtest.Variations{}), oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	reached := false
	other.OnToken(func(http.ResponseWriter, *http.Request) bool {
		reached = true
		return false
	})
	s.OnToken(func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, other.URL+"/token", http.StatusTemporaryRedirect)
		return true
	})
	p.fails(p.login(s, nil), listTools, "login needed")
	if reached {
		t.Error("the code went elsewhere")
	}
}
