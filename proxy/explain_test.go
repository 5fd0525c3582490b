package proxy_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
	"github.com/mcp-proxy/mcp-proxy/proxy/ops"
)

const explained = `
auth:
  jwt:
    - {issuer: "https://login.example.com", audience: ["https://mcp.example.com/mcp"], principal: email, scopes: [mcp]}
    - {issuer: "https://other.example.com", audience: ["https://mcp.example.com/mcp"]}
  tokens: [{name: ci, tokenFile: TOKEN}]
tls: {cert: c, key: k, clientCA: ca}
policies:
  - {who: {token: ci}, tools: {allow: ["files__*"], deny: ["*delete*"]}, resources: {allow: ["file:///pub/*"]}, limits: {rate: 90/m, inFlight: 16, sessions: 8}}
  - {who: {issuer: "https://login.example.com", claims: {groups: admin}}}
  - {who: {certificate: bot, issuer: "CN=ca"}, tools: {deny: ["docs__*"]}}
  - {who: {issuer: "https://login.example.com"}, scopes: {"files__write*": [files.write, files.read]}}
  - {who: {user: "0"}}
upstreams:
  files: {command: cat, tools: {deny: [internal*]}}
  docs: {command: cat, prefix: d}
`

func load(t *testing.T, text string) *config.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "p.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, _, err := config.Load(config.Options{File: file})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// Questions of clients, each with its answer, its rule and a part of the reason.
func TestExplain(t *testing.T) {
	p := explaining(t, explained)
	for _, c := range []struct{ as, name, answer, rule, why string }{
		{"token:ci", "files__write", "allowed", "policies[0]", `tools.allow has "files__*"`},
		{"token:ci", "files__delete_it", "denied", "policies[0]", `tools.deny has "*delete*"`},
		{"token:ci", "files__internal", "denied", "policies[0]", "upstreams.files.tools hides it"},
		{"token:ci", "d__x", "denied", "policies[0]", "allows only what it lists, and lists no such tool"},
		{"token:ci", "file:///pub/a", "allowed", "policies[0]", "resources.allow"},
		{"token:ci", "file:///pub/%2e%2e/a", "denied", "policies[0]", "read this URI as another"},
		{"token:ci", "file:///pub{/a}", "allowed", "policies[0]", "resources.allow"},
		{"token:ci", "file:///other/a", "denied", "policies[0]", "no such resource"},
		{"token:ci", "/other/a", "denied", "policies[0]", "no such resource"},
		{"token:default", "files__x", "denied", "", "no policy matches this client"},
		{"anonymous", "files__x", "denied", "", "no policy matches this client"},
		{"operator", "files__x", "denied", "", "no policy matches this client"},
		{"user:0", "files__x", "allowed", "policies[4]", "does not deny this"},
		{"certificate:bot@CN=ca", "d__x", "denied", "policies[2]", `tools.deny has "docs__*"`},
		{"certificate:bot@CN=other", "d__x", "denied", "", "no policy"},
		{"jwt:bob@https://other.example.com", "files__read", "denied", "", "no policy"},
		{"jwt:ann@https://login.example.com", "files__x", "allowed", "policies[3]", "does not deny this"},
		{"jwt:ann@https://login.example.com", "files__write", "needs scopes", "policies[3]", "policies[3].scopes"},
	} {
		e, err := p.Explain(c.name, c.as)
		if err != nil {
			t.Errorf("%s %s: %v", c.as, c.name, err)
			continue
		}
		if e.Answer != c.answer || e.Rule != c.rule || !strings.Contains(e.Why, c.why) || e.Allowed() != (c.answer == "allowed") {
			t.Errorf("%s %s: %+v", c.as, c.name, e)
		}
	}
	e, _ := p.Explain("files__write", "jwt:ann@https://login.example.com")
	if both := []string{"files.read", "files.write"}; !slices.Equal(e.Needs, both) || !slices.Equal(e.Missing, both) || e.Client != "jwt:ann@https://login.example.com" {
		t.Errorf("%+v", e)
	}
	e, _ = p.Explain("d__x", "token:ci")
	if e.Matched != "docs__x" || e.Upstream != "docs" || e.Limits != "rate 1.5/s, inFlight 16, sessions 8" {
		t.Errorf("%+v", e)
	}
	if e, _ := p.Explain("x", "user:0"); e.Upstream != "" || e.Answer != ops.AnswerUnknown {
		t.Errorf("%+v", e)
	}
}

// explaining is a proxy with a configuration, which has begun nothing.
func explaining(t *testing.T, text string) *proxy.Proxy {
	t.Helper()
	cfg := load(t, strings.Replace(text, "TOKEN", secretFile(t, "token-of-ci"), 1))
	cfg.TLS = newAuthority(t).files()
	p, err := proxy.New(cfg, proxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestExplainMistakes(t *testing.T) {
	p := explaining(t, explained)
	for as, want := range map[string]string{
		"token:cii": "did you mean ci?", "nobody": "is not a client", "anonymous:x": "has no name", "token:": "not a token",
		"user:": "has no name", "jwt:ann@https://other": "not an issuer of auth.jwt",
	} {
		if _, err := p.Explain("files__x", as); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", as, err)
		}
	}
}

func TestExplainWithoutPolicies(t *testing.T) {
	p, err := proxy.New(load(t, "upstreams: {files: {command: cat}}"), proxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	e, err := p.Explain("x", "operator")
	if err != nil || !e.Allowed() || e.Matched != "files__x" || !strings.Contains(e.Why, "has no policies") {
		t.Error(e, err)
	}
}
