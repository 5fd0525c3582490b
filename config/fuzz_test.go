package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// FuzzLoad loads any bytes in each format: Load ends, never panics, has the same result twice,
// and returns either printable error lines or a valid Config.
func FuzzLoad(f *testing.F) {
	for _, dir := range []string{"load", "mistakes", "servers", "found"} {
		found, _ := filepath.Glob(filepath.Join("testdata", dir, "*"))
		for _, name := range found {
			data, err := os.ReadFile(name)
			if err != nil {
				f.Fatal(err)
			}
			if i := slices.Index(extensions, filepath.Ext(name)); i >= 0 {
				f.Add(uint(i), data)
			}
		}
	}
	f.Add(uint(0), []byte("a: &a {x: 1}\nb: {<<: [*a, *a], y: *a, *a : 2}\n"))
	f.Add(uint(1), []byte("upstreams: {a: {command: \"$$${A:-b}${\"}}"))
	f.Add(uint(3), []byte("[links.0]\naccept = true\ntokenFile= \"00\" "))
	f.Add(uint(3), []byte("a = {b.c = [{d = 1}], b.e = 2}\n[[x.y]]\nz = 1\n[x.y.w]\n[[x.y]]\n"))

	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, format uint, data []byte) {
		file := filepath.Join(dir, "mcp-proxy"+extensions[format%uint(len(extensions))])
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		c, warnings, err := Load(Options{File: file})
		again, warningsAgain, errAgain := Load(Options{File: file})
		if !reflect.DeepEqual([]any{c, warnings, err}, []any{again, warningsAgain, errAgain}) {
			t.Error("not the same twice")
		}
		readable(t, warnings)
		if err != nil {
			complains(t, err)
		} else {
			sound(t, c)
		}
	})
}

func complains(t *testing.T, err error) {
	ps := err.(Problems)
	if len(ps) == 0 {
		t.Error("an error without problems")
	}
	for _, p := range ps {
		if p.Source == "" || p.Text == "" {
			t.Errorf("says too little: %#v", p)
		}
		readable(t, []string{p.Error()})
	}
}

func readable(t *testing.T, lines []string) {
	for _, line := range lines {
		if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("not one readable line: %q", line)
		}
	}
}

func sound(t *testing.T, c *Config) {
	names := make(map[string]bool)
	for _, u := range c.Upstreams {
		if !tree.IsName(u.Name) || names[u.Name] {
			t.Errorf("bad or repeated name %q", u.Name)
		}
		names[u.Name] = true
		if (u.Command != "") == (u.URL != "") {
			t.Errorf("%s: command %q, url %q", u.Name, u.Command, u.URL)
		}
		if u.StartTimeout <= 0 || u.WriteTimeout <= 0 || u.StopGrace <= 0 || u.RequestTimeout < 0 {
			t.Errorf("%s: a duration out of bounds", u.Name)
		}
	}
	for _, l := range c.Links {
		if !tree.IsName(l.Name) || (l.Dial == "") != l.Accept || l.Accept && l.TokenFile == "" {
			t.Errorf("a link that leads nowhere: %+v", l)
		}
		if l.Dial != "" && parseEndpoint(l.Dial).exposed() {
			t.Errorf("%s: exposed without a word", l.Name)
		}
	}
	if len(c.Upstreams)+len(c.Links) == 0 || len(c.Listen) == 0 {
		t.Error("nothing to do")
	}
	identified(t, c)
	l := c.Limits
	if l.Message <= 0 || l.Depth <= 0 || l.InFlight <= 0 || l.Sessions <= 0 || c.ListTimeout <= 0 {
		t.Error("a limit out of bounds")
	}
}

// identified checks the settings of authentication and policies.
func identified(t *testing.T, c *Config) {
	if strings.HasSuffix(c.PublicURL, "/") || c.TokenStore == "" || (c.TLS.Cert == "") != (c.TLS.Key == "") {
		t.Error("a setting is half there")
	}
	names := make(map[string]bool)
	for _, n := range c.Auth.Tokens {
		if n.Name == "" || n.TokenFile == "" || names[n.Name] {
			t.Errorf("a token of nobody: %+v", n)
		}
		names[n.Name] = true
	}
	for _, i := range c.Auth.JWT {
		if !isIssuer(i.Issuer) || len(i.Audience) == 0 || len(i.Algorithms) == 0 || i.Principal == "" || i.Skew < 0 {
			t.Errorf("an issuer that would let too many in: %+v", i)
		}
		for _, a := range i.Algorithms {
			if a == "none" || strings.HasPrefix(a, "HS") {
				t.Errorf("%s proves nothing", a)
			}
		}
	}
	for _, p := range c.Policies {
		if reflect.DeepEqual(p.Who, Who{}) || p.Limits.Rate < 0 || len(p.Who.proofs()) != 1 {
			t.Errorf("a rule about nobody, or about too many: %+v", p)
		}
	}
	for _, u := range c.Upstreams {
		if u.Auth != (UpstreamAuth{}) && (u.URL == "" || (u.Auth.OAuth == nil) == (u.Auth.ClientCredentials == nil)) {
			t.Errorf("%s: credentials for nobody", u.Name)
		}
	}
}
