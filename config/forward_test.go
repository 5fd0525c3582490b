package config

import (
	"reflect"
	"strings"
	"testing"
)

func TestForwardHeaders(t *testing.T) {
	t.Setenv("CONFIG_TEST_HEADER", "x-trace")
	for name, text := range map[string]string{
		"mcp-proxy.yaml": `upstreams: {docs: {url: "https://example.com", forwardHeaders: ["${CONFIG_TEST_HEADER}", {from: x-user-token, to: authorization}, {from: X-Tenant, identity: true}]}}`,
		"mcp-proxy.json": `{"upstreams": {"docs": {"url": "https://example.com", "forwardHeaders": ["${CONFIG_TEST_HEADER}", {"from": "x-user-token", "to": "authorization"}, {"from": "X-Tenant", "identity": true}]}}}`,
		"mcp-proxy.toml": "[upstreams.docs]\nurl = \"https://example.com\"\nforwardHeaders = [\"${CONFIG_TEST_HEADER}\", {from = \"x-user-token\", to = \"authorization\"}, {from = \"X-Tenant\", identity = true}]\n",
	} {
		c, warnings, err := Load(Options{File: write(t, name, text)})
		if err != nil || len(warnings) > 0 {
			t.Fatal(name, err, warnings)
		}
		at := "upstreams.docs.forwardHeaders"
		want := []ForwardedHeader{
			{at + "[0]", "X-Trace", "X-Trace", false}, {at + "[1]", "X-User-Token", "Authorization", true}, {at + "[2]", "X-Tenant", "X-Tenant", true},
		}
		if got := c.Upstreams[0].ForwardHeaders; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// The token for the proxy is refused wherever it is configured, and a host has no clients.
func TestForwardHeadersAndTheFrontEnd(t *testing.T) {
	file := write(t, "mcp-proxy.yaml", `upstreams: {docs: {url: "http://example.com", forwardHeaders: [Authorization]}}`)
	_, warnings, err := Load(Options{File: file})
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "upstreams.docs: sends Authorization unencrypted") {
		t.Error("without a token:", err, warnings)
	}
	_, _, err = Load(Options{File: file, TokenFile: "token"})
	if err == nil || !strings.Contains(err.Error(), "mcp-proxy.yaml: upstreams.docs.forwardHeaders[0]: Authorization is the token for this proxy") {
		t.Error("--token-file:", err)
	}
	t.Setenv("MCP_PROXY_TOKEN_FILE", "token")
	if _, _, err = Load(Options{File: file}); err == nil {
		t.Error("MCP_PROXY_TOKEN_FILE: no mistake")
	}
	t.Setenv("MCP_PROXY_TOKEN_FILE", "")
	if _, _, err = Load(Options{File: file, Host: true}); err == nil || !strings.Contains(err.Error(), "upstreams.docs.forwardHeaders: is only valid for a proxy") {
		t.Error("host:", err)
	}
}
