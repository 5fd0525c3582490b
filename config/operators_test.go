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
		"admin: {listen: [nowhere]}\n":                                                   "mcp-proxy.yaml: admin.listen[0]: must be HOST:PORT (a port is at most 65535) or unix:///path, not \"nowhere\"\n",
		"admin: {listen: [\"127.0.0.1:1\", \"127.0.0.1:1\"]}\n":                          "mcp-proxy.yaml: admin.listen: has \"127.0.0.1:1\" twice\n",
		"listen: [\"127.0.0.1:1\", \"127.0.0.1:1\", \"127.0.0.1:0\", \"127.0.0.1:0\"]\n": "mcp-proxy.yaml: listen: has \"127.0.0.1:1\" twice\n",
		"admin: {tokenfile: t}\n":                                                        "mcp-proxy.yaml: admin.tokenfile: unknown key; it is written tokenFile\n",
		"admin: {tokenFile: t}\n":                                                        "mcp-proxy.yaml: admin.tokenFile: is only valid with a HOST:PORT in admin.listen: operators on a Unix socket need no token\n",
		"admin: {listen: [\"unix:///run/a\"], tokenFile: t}\n":                           "mcp-proxy.yaml: admin.tokenFile: is only valid with a HOST:PORT in admin.listen: operators on a Unix socket need no token\n",
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

func TestTraces(t *testing.T) {
	const upstreams = "upstreams: {a: {command: x}}\n"
	c := load(t, upstreams+"traces: {endpoint: \"https://collector:4318\", sample: 0.25, headersFrom: {Authorization: key}, tls: {ca: ca.pem}}\n")
	if v := c.Traces; v.Endpoint != "https://collector:4318" || v.Sample == nil || *v.Sample != 0.25 || v.HeadersFrom["Authorization"] != filepath.Join(filepath.Dir(c.File), "key") {
		t.Errorf("traces are %+v", v)
	}
	if v := load(t, upstreams).Traces; v.Endpoint != "" || v.Sample != nil {
		t.Errorf("by default traces are %+v", v)
	}
	const endpoint = "mcp-proxy.yaml: traces.endpoint: must be an http or https URL such as http://127.0.0.1:4318, without a user, ? or #\n"
	for text, want := range map[string]string{
		"traces: {endpoint: \"collector:4318\"}\n":               endpoint,
		"traces: {endpoint: \"http://u:secret@collector\"}\n":    endpoint,
		"traces: {endpoint: \"http://collector/?key=secret\"}\n": endpoint,
		"traces: {sample: 1.5}\n":                                "mcp-proxy.yaml: traces.sample: must be a number from 0 to 1 such as 0.1, not 1.5\n",
		"traces: {sample: .nan}\n":                               "mcp-proxy.yaml: traces.sample: must be a number from 0 to 1 such as 0.1, not .nan\n",
		"traces: {endpont: x}\n":                                 "mcp-proxy.yaml: traces.endpont: unknown key; did you mean endpoint?\n",
		"traces: {endpoint: \"http://a\", tls: {ca: c}}\n":       "mcp-proxy.yaml: traces.tls: is only valid with an https endpoint\n",
		"traces: {headersFrom: {A: f, a: f}}\n":                  "mcp-proxy.yaml: traces.headersFrom.a: is the same header as A\n",
	} {
		if got := problems(t, Options{File: write(t, "mcp-proxy.yaml", upstreams+text)}); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
	_, warnings, err := Load(Options{File: write(t, "mcp-proxy.yaml", upstreams+"traces: {endpoint: \"http://collector\", headersFrom: {A: f}}\n")})
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
