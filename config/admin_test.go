package config

import (
	"path/filepath"
	"testing"
)

func TestAdmin(t *testing.T) {
	const upstreams = "upstreams: {a: {command: x}}\n"
	c := load(t, upstreams+"admin: {listen: [\"127.0.0.1:9090\", \"unix:///run/a\"], tokenFile: token, payloads: true}\n")
	if a := c.Admin; len(a.Listen) != 2 || !a.Payloads || a.TokenFile != filepath.Join(filepath.Dir(c.File), "token") {
		t.Errorf("admin is %+v", a)
	}
	if a := load(t, upstreams).Admin; a.Listen != nil || a.Payloads || a.TokenFile != "" {
		t.Errorf("by default admin is %+v", a)
	}
	for text, want := range map[string]string{
		"admin: {listen: [nowhere]}\n":                         "mcp-proxy.yaml: admin.listen[0]: must be HOST:PORT or unix:///path, not \"nowhere\"\n",
		"admin: {tokenfile: t}\n":                              "mcp-proxy.yaml: admin.tokenfile: unknown key; it is written tokenFile\n",
		"admin: {tokenFile: t}\n":                              "mcp-proxy.yaml: admin.tokenFile: has a meaning only with a HOST:PORT in admin.listen: who can use a Unix socket needs no token\n",
		"admin: {listen: [\"unix:///run/a\"], tokenFile: t}\n": "mcp-proxy.yaml: admin.tokenFile: has a meaning only with a HOST:PORT in admin.listen: who can use a Unix socket needs no token\n",
	} {
		if got := problems(t, Options{File: write(t, "mcp-proxy.yaml", upstreams+text)}); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
	_, warnings, err := Load(Options{Host: true, File: write(t, "mcp-proxy.yaml", upstreams+"admin: {listen: [\"0.0.0.0:9090\"], tokenFile: t}\n")})
	if err != nil || len(warnings) != 1 {
		t.Errorf("%q, %v", warnings, err)
	}
}

func TestRequired(t *testing.T) {
	c := load(t, "upstreams: {a: {command: x, required: true}, b: {url: \"https://b\"}}\nlinks: {l: {dial: \"unix:///l\", required: true}}\n")
	if !c.Upstreams[0].Required || c.Upstreams[1].Required || !c.Links[0].Required {
		t.Errorf("%v %v", c.Upstreams, c.Links)
	}
}
