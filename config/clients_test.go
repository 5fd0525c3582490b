package config

import (
	"strings"
	"testing"
)

// listens loads a configuration that listens beyond loopback, and returns its warnings.
func listens(t *testing.T, text string) []string {
	t.Helper()
	_, warnings, err := Load(Options{File: write(t, "mcp-proxy.yaml", "listen: [\"0.0.0.0:80\", \"unix:///a\", \"localhost:1\"]\nupstreams: {a: {command: x}}\n"+text)})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	for i := range warnings {
		_, warnings[i], _ = strings.Cut(warnings[i], ".yaml: ")
	}
	return warnings
}

// Beyond loopback clients must authenticate in some way. Named tokens and JWT are for many
// clients: a warning says where they are sent unencrypted.
func TestProofBeyondLoopback(t *testing.T) {
	const (
		tokens = "auth: {tokens: [{name: ci, tokenFile: t}]}\n"
		jwt    = "auth: {jwt: [{issuer: \"https://login.example.com\", audience: a}]}\n"
		pair   = "tls: {cert: c, key: k}\n"
		read   = `listen: tokens to "0.0.0.0:80" are sent unencrypted: set tls, or an https publicURL if a proxy in front terminates TLS`
	)
	for text, want := range map[string]string{
		"tokenFile: t\n":                        "",
		"tls: {cert: c, key: k, clientCA: a}\n": "",
		tokens:                                  read,
		jwt:                                     read,
		tokens + pair:                           "",
		jwt + pair:                              "",
		jwt + "publicURL: https://mcp.example.com\n":            "",
		jwt + "publicURL: http://localhost:80\n":                read,
		jwt + "insecure: true\n":                                read,
		"insecure: true\n" + pair + "auth: {tokens: , jwt: []}": "",
	} {
		if got := strings.Join(listens(t, text), "\n"); got != want {
			t.Errorf("%s: warnings %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{pair, "auth: {tokens: []}\n", "policies: [{who: any}]\n", "publicURL: https://mcp.example.com\n"} {
		file := write(t, "mcp-proxy.yaml", "listen: [\":80\"]\nupstreams: {a: {command: x}}\n"+text)
		if got := problems(t, Options{File: file}); !strings.Contains(got, `listen: ":80" is reachable from other machines`) {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// A flag overrides the environment and the file. Each file of TLS is overridden by itself.
func TestServeFlags(t *testing.T) {
	t.Setenv("MCP_PROXY_TOKEN_FILE", "/env/token")
	t.Setenv("MCP_PROXY_PUBLIC_URL", "https://env.example.com")
	t.Setenv("MCP_PROXY_INSECURE", "true")
	file := write(t, "mcp-proxy.yaml", "tls: {cert: /file/cert, key: /file/key}\nupstreams: {a: {command: x}}\n")
	c, _, err := Load(Options{
		File: file, TokenFile: "token", Insecure: new(bool), PublicURL: "https://flag.example.com/",
		TLS: ListenTLS{Cert: "cert", ClientCA: "ca"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.TokenFile != "token" || c.Insecure || c.PublicURL != "https://flag.example.com" ||
		c.TLS != (ListenTLS{Cert: "cert", Key: "/file/key", ClientCA: "ca"}) {
		t.Errorf("got %+v", c)
	}

	if got := problems(t, Options{Command: []string{"x"}, TLS: ListenTLS{ClientCA: "ca"}}); got !=
		"--tls-cert: client certificates need a certificate and a key of the server\n" {
		t.Errorf("authorities alone: %s", got)
	}
	got := problems(t, Options{File: file, TLS: ListenTLS{Key: "key"}, PublicURL: "https://me:hidden@example.com"})
	if got != "--public-url: must be "+rules["publicURL"].what+"\n" {
		t.Errorf("a password: %s", got)
	}
	t.Setenv("MCP_PROXY_PUBLIC_URL", "https://me:hidden@example.com")
	t.Setenv("MCP_PROXY_TOKEN_STORE", "keychain")
	want := "MCP_PROXY_PUBLIC_URL: must be " + rules["publicURL"].what + "\nMCP_PROXY_TOKEN_STORE: must be file or keyring, not \"keychain\"\n"
	if got := problems(t, Options{File: file}); got != want {
		t.Errorf("the environment: %s", got)
	}
}

// A host ignores keys of a proxy that mean nothing for it. Policies are a mistake, since their
// author relies on them.
func TestHostHasNoPolicies(t *testing.T) {
	const settings = "auth: {tokens: [{name: ci, tokenFile: t}, {name: other, tokenFile: t}]}\ntls: {cert: c}\nupstreams: {a: {command: x}}\n"
	if _, _, err := Load(Options{File: write(t, "mcp-proxy.yaml", settings), Host: true}); err != nil {
		t.Error(err)
	}
	file := write(t, "mcp-proxy.yaml", settings+"policies: [{who: any}]\n")
	if got := problems(t, Options{File: file, Host: true}); got != "mcp-proxy.yaml: policies: are only valid for a proxy: a host does not know its clients\n" {
		t.Errorf("got %s", got)
	}
}
