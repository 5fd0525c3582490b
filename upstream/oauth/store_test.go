package oauth

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/zalando/go-keyring"

	"github.com/mcp-proxy/mcp-proxy/upstream/oauth/oauthtest"
)

// Errors name an unreadable record, which is not changed.
func TestBadRecords(t *testing.T) {
	for name, tt := range map[string]struct{ text, says string }{
		"not JSON":      {`{"token":`, "is damaged: delete it, and log in again"},
		"empty":         {``, "is damaged: delete it, and log in again"},
		"a later one":   {`{"version":2,"token":"s3cr3t"}`, "was written by a later version of mcp-proxy"},
		"another shape": {`{"version":1,"token":"s3cr3t"}`, "is damaged: delete it, and log in again"},
	} {
		t.Run(name, func(t *testing.T) {
			s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
			l := p.login(s, nil)
			path := l.config.Store.where(l.key)
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, do := range []func() error{
				func() error { return l.call(t.Context(), listTools) },
				func() error { _, err := l.LogIn(t.Context(), false); return err },
				func() error { _, _, err := l.LogOut(t.Context()); return err },
			} {
				err := do()
				if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), oauthtest.Marked) {
					t.Errorf("got %v", err)
				}
			}
			if text, _ := os.ReadFile(path); string(text) != tt.text {
				t.Errorf("the file is now %q", text)
			}
		})
	}
}

// Records of later versions may have more members.
func TestRecordOfALaterVersion(t *testing.T) {
	r, err := parseRecord([]byte(`{"version":1,"issuer":"i","later":{"a":1},"token":{"access":"x","later":2}}`))
	if err != nil || r.Issuer != "i" || r.Token.Access != "x" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// A login made while the clock was wrong is not a recent one until the clock says so.
func TestRecordOfTheFuture(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{Refresh: "none"}), newPerson(t)
	postdate := func(member string) {
		t.Helper()
		l := p.login(s, nil)
		path := l.config.Store.where(l.key)
		text, err := os.ReadFile(path)
		later := regexp.MustCompile(`("`+member+`": ?"20)..`).ReplaceAll(text, []byte("${1}99"))
		if err != nil || bytes.Equal(later, text) {
			t.Fatalf("no %s in %s, %v", member, text, err)
		}
		if err := os.WriteFile(path, later, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.ok(p.login(s, nil), listTools)
	postdate("granted")
	s.Revoke(true)
	s.Vary(func(v *oauthtest.Variations) { v.Deny = true })
	p.fails(p.login(s, nil), listTools, "access_denied")
	postdate("at")
	s.Vary(func(v *oauthtest.Variations) { v.Deny = false })
	p.ok(p.login(s, nil), listTools)
}

func TestRecordOfOthers(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	l := p.login(s, nil)
	p.ok(l, listTools)
	path := l.config.Store.where(l.key)
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	files, _ := filepath.Glob(filepath.Join(p.dir, "*"))
	if len(files) != 3 {
		t.Errorf("there are %v", files) // the record, its lock, and that of the login
	}
	os.Chmod(path, 0o644)
	p.fails(p.login(s, nil), listTools, "others can read it (mode 644)")
}

func TestNoPlaceForLogins(t *testing.T) {
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	p.fails(p.login(s, func(c *LoginConfig) { c.Store = &Store{} }), listTools, "no place to store logins")
}

// A failed change changes nothing.
func TestUpdateFails(t *testing.T) {
	s, k := &Store{Dir: t.TempDir()}, key{server: "https://example.com/mcp"}
	if err := s.update(t.Context(), k, func(r *record) error { r.Issuer = "one"; return nil }); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("failed")
	if err := s.update(t.Context(), k, func(r *record) error { r.Issuer = "two"; return failed }); err != failed {
		t.Errorf("got %v", err)
	}
	if err := s.update(t.Context(), k, func(r *record) error {
		if r.Issuer != "one" {
			t.Errorf("got %q", r.Issuer)
		}
		r.Issuer = "three"
		return fmt.Errorf("%w: %w", errOver, failed)
	}); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	if r, err := s.load(k); err != nil || r.Issuer != "three" || r.Server != k.server {
		t.Errorf("got %v, %v", r, err)
	}
}

// A record that could not be saved counts until the one in the store changes.
func TestUnsaved(t *testing.T) {
	s, k := &Store{Dir: t.TempDir()}, key{server: "https://example.com/mcp"}
	set := func(s *Store, issuer string) error {
		return s.update(t.Context(), k, func(r *record) error { r.Issuer = issuer; return nil })
	}
	expect := func(want string) {
		t.Helper()
		if r, err := s.load(k); err != nil || r.Issuer != want {
			t.Errorf("got %v, %v, want %q", r, err, want)
		}
	}
	if err := set(s, "one"); err != nil {
		t.Fatal(err)
	}
	s.replace = func(string, []byte) error { return errors.New("full") }
	for _, issuer := range []string{"two", "three"} {
		if err := set(s, issuer); !errors.Is(err, errUnsaved) {
			t.Errorf("got %v", err)
		}
		expect(issuer)
	}
	if err := set(&Store{Dir: s.Dir}, "of another process"); err != nil {
		t.Fatal(err)
	}
	expect("of another process")
	if s.isUnsaved(k) {
		t.Error("the old one is kept")
	}
}

// The keyring stores the same records as files.
func TestKeyring(t *testing.T) {
	keyring.MockInit()
	s, p := oauthtest.New(t, oauthtest.Variations{}), newPerson(t)
	in := func(c *LoginConfig) { c.Store = &Store{Dir: p.dir, Keyring: true} }
	p.ok(p.login(s, in), listTools)
	p.ok(p.login(s, in), listTools)
	p.want("prompts", p.prompts(), 1)
	if files, _ := filepath.Glob(filepath.Join(p.dir, "*.json")); len(files) > 0 {
		t.Errorf("there are %v", files)
	}
	if _, _, err := p.login(s, in).LogOut(t.Context()); err != nil {
		t.Error(err)
	}
	p.ok(p.login(s, in), listTools)
	p.want("prompts", p.prompts(), 2)
	keyring.MockInitWithError(errors.New("locked"))
	p.fails(p.login(s, in), listTools, "locked")
	open := oauthtest.New(t, oauthtest.Variations{Public: []string{listTools}}) // it needs no login
	p.ok(p.login(open, func(c *LoginConfig) { in(c); c.Implicit = true }), listTools)
	p.fails(p.login(s, func(c *LoginConfig) { in(c); c.Implicit = true }), listTools, "locked")
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"version":1,"token":{"access":"a","expires":"2026-01-01T00:00:00Z"},"client":{"id":"x","returns":["a"]}}`))
	f.Add([]byte(`{"version":1,"failed":{"at":"2026-01-01T00:00:00Z","why":"x"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parseRecord(text)
		if err != nil {
			return
		}
		r.of(&place{})
		r.Client.good("a")
		if r.Token.good() {
			r.Token.due()
		}
	})
}
