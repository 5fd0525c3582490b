package proxy_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-proxy/mcp-proxy/config"
	"github.com/mcp-proxy/mcp-proxy/proxy"
)

const explained = `
auth:
  jwt: [{issuer: "https://login.example.com", audience: ["https://mcp.example.com/mcp"], principal: email, scopes: [mcp]}]
  tokens: [{name: ci, tokenFile: ci}]
tls: {cert: c, key: k, clientCA: ca}
policies:
  - {who: {token: ci}, tools: {allow: ["files__*"], deny: ["*delete*"]}, resources: {allow: ["file:///pub/*"]}, limits: {rate: 90/m, inFlight: 16, sessions: 8}}
  - {who: {issuer: "https://login.example.com", claims: {groups: admin}}, scopes: {"files__write*": [files.write, files.read]}}
  - {who: {certificate: bot, issuer: "CN=ca"}, prompts: {deny: ["docs__*"]}}
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

// Who asks for what, and what is said: the answer, the rule, and a piece of why.
func TestExplain(t *testing.T) {
	cfg := load(t, explained)
	admin := func(scope string) string {
		return `{"iss":"https://login.example.com","email":"ann","groups":["admin"],"scope":"` + scope + `"}`
	}
	for _, c := range []struct {
		as, claims, name, kind string
		answer, rule, why      string
	}{
		{"token:ci", "", "files__write", "", "allowed", "policies[0]", `tools.allow has "files__*"`},
		{"token:ci", "", "files__delete_it", "", "denied", "policies[0]", `tools.deny has "*delete*"`},
		{"token:ci", "", "files__internal", "", "denied", "policies[0]", "upstreams.files.tools hides it"},
		{"token:ci", "", "d__x", "", "denied", "policies[0]", "allows only what it lists, and lists no such tool"},
		{"token:ci", "", "files__ask", "prompt", "denied", "policies[0]", "no such prompt"},
		{"token:ci", "", "file:///pub/a", "", "allowed", "policies[0]", "resources.allow"},
		{"token:ci", "", "file:///pub/%2e%2e/a", "", "denied", "policies[0]", "take this URI for another"},
		{"token:ci", "", "file:///pub{/a}", "", "allowed", "policies[0]", "resources.allow"},
		{"token:ci", "", "file:///other/a", "", "denied", "policies[0]", "no such resource"},
		{"token:default", "", "files__x", "", "denied", "", "no policy is about this client"},
		{"anonymous", "", "files__x", "", "denied", "", "no policy is about this client"},
		{"operator", "", "files__x", "", "denied", "", "no policy is about this client"},
		{"user:0", "", "files__x", "", "allowed", "policies[3]", "does not deny this"},
		{"certificate:bot@CN=ca", "", "d__x", "prompt", "denied", "policies[2]", `prompts.deny has "docs__*"`},
		{"certificate:bot@CN=other", "", "d__x", "", "denied", "", "no policy"},
		{"jwt:ann@https://login.example.com", "", "files__x", "", "denied", "", "no policy"},
		{"", admin("mcp files.write files.read"), "files__write", "", "allowed", "policies[1]", "does not deny this"},
		{"", admin("mcp files.read"), "files__write", "", "needs scopes", "policies[1]", "policies[1].scopes"},
		{"", `{"iss":"https://login.example.com","email":"bob","scp":["mcp"]}`, "files__read", "", "denied", "", "no policy"},
	} {
		q := proxy.Question{Name: c.name, Kind: c.kind, As: c.as}
		if c.claims != "" {
			q.Claims = []byte(c.claims)
		}
		e, err := proxy.Explain(cfg, q)
		if err != nil {
			t.Errorf("%s %s: %v", c.as, c.name, err)
			continue
		}
		if e.Answer != c.answer || e.Rule != c.rule || !strings.Contains(e.Why, c.why) || e.Allowed() != (c.answer == "allowed") {
			t.Errorf("%s%s %s: %+v", c.as, c.claims, c.name, e)
		}
	}
	e, _ := proxy.Explain(cfg, proxy.Question{Name: "files__write", Claims: []byte(admin("files.read"))})
	if !slices.Equal(e.Needs, []string{"files.read", "files.write"}) || !slices.Equal(e.Missing, []string{"files.write"}) || len(e.Notes) != 1 || e.Client != "jwt:ann@https://login.example.com" {
		t.Errorf("%+v", e)
	}
	e, _ = proxy.Explain(cfg, proxy.Question{Name: "d__x", As: "token:ci"})
	if e.Matched != "docs__x" || e.Upstream != "docs" || e.Limits != "rate 1.5/s, inFlight 16, sessions 8" || e.Notes != nil {
		t.Errorf("%+v", e)
	}
	if e, _ := proxy.Explain(cfg, proxy.Question{Name: "x", As: "user:0"}); e.Upstream != "" || e.Answer != proxy.AnswerUnknown {
		t.Errorf("%+v", e)
	}
}

func TestExplainMistakes(t *testing.T) {
	cfg := load(t, explained)
	for _, c := range []struct{ as, claims, kind, want string }{
		{"token:cii", "", "", "did you mean ci?"},
		{"nobody", "", "", "is no client"},
		{"anonymous:x", "", "", "has no name"},
		{"token:", "", "", "no token"},
		{"user:", "", "", "has no name"},
		{"jwt:ann@https://other", "", "", "no issuer of auth.jwt"},
		{"", `[]`, "", "not a JSON object"},
		{"", `{"iss":"https://login.example.com","sub":"ann"}`, "", `no "email"`},
		{"token:ci", `{}`, "", "not by both"},
		{"token:ci", "", "verb", "neither tool, prompt nor resource"},
	} {
		q := proxy.Question{Name: "files__x", As: c.as, Kind: c.kind}
		if c.claims != "" {
			q.Claims = []byte(c.claims)
		}
		if _, err := proxy.Explain(cfg, q); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	e, err := proxy.Explain(load(t, "upstreams: {files: {command: cat}}"), proxy.Question{Name: "x", As: "operator"})
	if err != nil || !e.Allowed() || e.Matched != "files__x" || !strings.Contains(e.Why, "has no policies") {
		t.Error(e, err)
	}
}
