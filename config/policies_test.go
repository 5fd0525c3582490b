package config

import (
	"strings"
	"testing"
)

// A glob that matches nothing is valid, but protects nothing: a warning.
func TestIdleGlobs(t *testing.T) {
	const policies = `
policies:
  - who: any
    tools: {allow: ["files__*", "f*", "*", "?ocs__x", "f[i]les__x", "docs__read"], deny: ["delete_*", "files__", "files_*", "file"]}
    prompts: {allow: [docs__a], deny: [docs]}
    resources: {deny: ["nowhere*"]}
    scopes: {"docs__*": [a], "file:///*": [a], "write*": [a]}
`
	_, warnings, err := Load(Options{File: write(t, "mcp-proxy.yaml", "upstreams: {files: {command: x}, docs: {command: x}}"+policies)})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range warnings {
		_, w, _ := strings.Cut(w, ".yaml: ")
		w = strings.TrimSuffix(w, " matches nothing: names begin with the name of the upstream, as in files__*")
		got = append(got, w)
	}
	want := []string{
		"policies[0].tools.deny[0]:", "policies[0].tools.deny[3]:", "policies[0].prompts.deny[0]:", `policies[0].scopes."write*":`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("warnings\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	_, warnings, err = Load(Options{File: write(t, "mcp-proxy.yaml", "upstreams: {files: {command: x}}\nlinks: {a: {dial: \"unix:///a\"}}"+policies)})
	if err != nil || len(warnings) > 0 {
		t.Errorf("a link may have any upstream: %q, %v", warnings, err)
	}
}

func TestWhoCovers(t *testing.T) {
	ofIssuer, admins := Who{Issuer: "i"}, Who{Issuer: "i", Claims: map[string]string{"groups": "admin"}}
	both := Who{Issuer: "i", Claims: map[string]string{"groups": "admin", "level": "3"}}
	for _, tt := range []struct {
		name         string
		first, later Who
		want         bool
	}{
		{"all before one", Who{Any: true}, Who{Token: "a"}, true},
		{"one before all", Who{Token: "a"}, Who{Any: true}, false},
		{"another name", Who{Token: "a"}, Who{Token: "b"}, false},
		{"another kind", Who{Token: "a"}, Who{User: "a"}, false},
		{"anonymous and all", Who{Anonymous: true}, Who{Any: true}, false},
		{"the same", Who{Operator: true}, Who{Operator: true}, true},
		{"issuer before claim", ofIssuer, admins, true},
		{"claim before issuer", admins, ofIssuer, false},
		{"one claim before two", admins, both, true},
		{"two claims before one", both, admins, false},
		{"issuer before name", ofIssuer, Who{Issuer: "i", Principal: "bob"}, true},
		{"name before claim", Who{Issuer: "i", Principal: "bob"}, admins, false},
		{"certificate of any authority", Who{Certificate: "c"}, Who{Certificate: "c", Issuer: "i"}, true},
	} {
		if got := tt.first.covers(tt.later); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

// Globs for one upstream must not match names of another.
func TestNamesThatGlobsConfuse(t *testing.T) {
	const upstreams = "upstreams: {a: {command: x}, a_: {command: x}, b_: {command: x}, a_c: {command: x}}\n"
	load(t, upstreams)
	got := problems(t, Options{File: write(t, "mcp-proxy.yaml", upstreams+"policies: [{who: any}]\n")})
	if got != "mcp-proxy.yaml: upstreams.a_: needs another name: policies for a__* would match it, too\n" {
		t.Errorf("got %s", got)
	}
}

// A rule that no client can match is a warning: a flag may change that.
func TestRulesAboutNobody(t *testing.T) {
	const socket, token, ca = "listen: [\"unix:///a\"]\n", "tokenFile: t\n", "tls: {cert: c, key: k, clientCA: a}\n"
	for _, tt := range []struct{ settings, who, want string }{
		{"", "{certificate: a}", "policies[0].who.certificate: matches no client: tls.clientCA is not set"},
		{ca, "{certificate: a, issuer: Example CA}", ""},
		{"", "anonymous", ""},
		{token, "anonymous", "policies[0].who: matches no client: all clients must authenticate"},
		{ca, "{anonymous: true}", "policies[0].who: matches no client: all clients must authenticate"},
		{"", "{user: a}", "policies[0].who.user: matches no client: listen has no Unix socket"},
		{socket, "{user: a}", ""},
		{socket + ca, "{user: a}", ""},
		{socket + token, "{user: a}", "policies[0].who.user: matches no client: clients on Unix sockets need a token, too"},
		{"", "operator", ""},
		{"", "{token: default}", ""}, // a flag may set it
	} {
		_, warnings, err := Load(Options{File: write(t, "mcp-proxy.yaml", tt.settings+"upstreams: {a: {command: x}}\npolicies: [{who: "+tt.who+"}]\n")})
		got := strings.Join(warnings, "\n")
		if _, text, ok := strings.Cut(got, ".yaml: "); ok {
			got = text
		}
		if err != nil || got != tt.want {
			t.Errorf("%s%s: %v, warnings %q, want %q", tt.settings, tt.who, err, got, tt.want)
		}
	}
}
