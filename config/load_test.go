package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mcp-proxy/mcp-proxy/config/tree"
)

// wantFull returns the Config of testdata/load/full.* in every format.
func wantFull(dir string) *Config {
	bare, docs := "", "docs-"
	remote := func(name, url string, auth UpstreamAuth) Upstream {
		return Upstream{
			Name: name, Key: "upstreams." + name, Remote: Remote{URL: url, Auth: auth},
			StartTimeout: 30 * time.Second, WriteTimeout: time.Minute, StopGrace: 2 * time.Second,
		}
	}
	return &Config{
		Frontend: Frontend{
			PublicURL:      "https://mcp.example.com",
			TLS:            ListenTLS{Cert: filepath.Join(dir, "serve.pem"), Key: "/etc/serve.key", ClientCA: filepath.Join(dir, "clients.pem")},
			Auth:           wantAuth(dir),
			Listen:         []string{"127.0.0.1:9090", "[::1]:9090", "unix:///run/mcp.sock"},
			TokenFile:      filepath.Join(dir, "secrets/token"),
			Insecure:       true,
			AllowedHosts:   []string{"proxy.example.com", "proxy.example.com:8443", "[fd00::1]"},
			AllowedOrigins: []string{"https://app.example.com", "http://app.example.com:3000"},
		},
		TokenStore: "keyring",
		Cluster: Cluster{
			KeyFile: filepath.Join(dir, "secrets/cluster"), Join: []string{"replicas.example.com", "192.0.2.7:7000"}, Listen: "192.0.2.7:7000",
			Advertise: "198.51.100.7", Required: true,
		},
		CatalogAge:    24 * time.Hour,
		Policies:      wantPolicies(),
		SessionIdle:   90 * time.Minute,
		SessionGone:   90 * time.Second,
		ListTimeout:   2 * time.Second,
		ShutdownGrace: 3 * time.Second,
		Prefix:        "never",
		Limits:        Limits{Message: 3 << 19, Depth: 100, InFlight: 64, Sessions: 8},
		Upstreams: []Upstream{{
			Name: "zeta", Key: "upstreams.zeta",
			Process: Process{
				Command:    filepath.Join(dir, "bin/server"),
				Args:       []string{"-p", "010", "1.10", "true", "value", "fall back", "${HOME}"},
				Env:        map[string]string{"Mixed_Case": "avalueb", "PORT": "8080", "path": ""},
				InheritEnv: []string{"AWS_REGION", "SSH_*"},
				Cwd:        filepath.Join(dir, "data"),
				Spare:      2,
			},
			StartTimeout: time.Second, RequestTimeout: 2 * time.Second,
			WriteTimeout: 3 * time.Second, StopGrace: 4 * time.Second, IdleStop: 15 * time.Minute,
			Prefix: &bare,
			Tools:  Tools{Allow: []string{"read_*", "repo/*"}, Deny: []string{"*_all"}},
		}, {
			Name: "Alpha", Key: "upstreams.Alpha",
			Remote: Remote{
				URL:           "https://example.com/mcp",
				Headers:       map[string]string{"X-Api-KEY": "value", "authorization": "Bearer x"},
				HeadersFrom:   map[string]string{"X-Other": filepath.Join(dir, "secrets/other")},
				TLS:           TLS{CA: filepath.Join(dir, "ca.pem"), Cert: "/etc/cert.pem", Key: filepath.Join(dir, "key.pem")},
				MaxConcurrent: 4,
			},
			Era:          "legacy",
			Shared:       true,
			StartTimeout: 30 * time.Second, WriteTimeout: time.Minute, StopGrace: 2 * time.Second,
			Prefix: &docs,
		},
			remote("docs", "https://docs.example.com", UpstreamAuth{
				OAuth: &OAuth{ClientID: "abc", ClientSecretFile: filepath.Join(dir, "secrets/docs"), Scopes: []string{"read", "write"}},
			}),
			remote("open", "https://open.example.com", UpstreamAuth{OAuth: &OAuth{}}),
			remote("robot", "wss://robot.example.com", UpstreamAuth{ClientCredentials: &ClientCredentials{
				ClientID: "abc", PrivateKeyFile: filepath.Join(dir, "robot.pem"), TokenURL: "https://login.example.com/token", Scopes: []string{"all"},
			}}),
			remote("pod", "https://pod.example.com", UpstreamAuth{ClientCredentials: &ClientCredentials{AssertionFile: "/var/run/token"}}),
			{
				Name: "mid", Key: "upstreams.mid", Process: Process{Command: "npx"}, Era: "modern",
				Shared: true, Roots: []string{"file:///data", "file:///value"},
				StartTimeout: 30 * time.Second, WriteTimeout: time.Minute, StopGrace: 2 * time.Second,
			},
			{
				Name: "tape", Key: "upstreams.tape", Process: Process{Command: "mcp-proxy", Args: []string{"replay", "tapes/files.ndjson"}}, Shared: true,
				StartTimeout: 30 * time.Second, WriteTimeout: time.Minute, StopGrace: 2 * time.Second,
			}},
		Links: []Link{
			{Name: "tools", Key: "links.tools", Dial: "unix:///run/mcp/tools.sock", Heartbeat: 5 * time.Second},
			{Name: "Back", Key: "links.Back", Accept: true, TokenFile: filepath.Join(dir, "secrets/link"), Heartbeat: 5 * time.Second},
			{
				Name: "far", Key: "links.far", Dial: "wss://far.example.com/link", TokenFile: filepath.Join(dir, "secrets/far"),
				TLS: TLS{CA: filepath.Join(dir, "ca.pem"), Cert: "/etc/cert.pem", Key: filepath.Join(dir, "key.pem")}, Heartbeat: 5 * time.Second,
			},
			{
				Name: "person", Key: "links.person", Dial: "wss://person.example.com/link", Heartbeat: 5 * time.Second,
				Auth: UpstreamAuth{OAuth: &OAuth{ClientID: "https://example.com/client.json"}},
			},
			{Name: "near", Key: "links.near", Dial: "tcp://127.0.0.1:7000", Heartbeat: time.Second},
		},
	}
}

func wantAuth(dir string) Auth {
	return Auth{
		Tokens: []NamedToken{
			{Key: "auth.tokens[0]", Name: "ci", TokenFile: filepath.Join(dir, "secrets/ci")},
			{Key: "auth.tokens[1]", Name: "alice@example.com", TokenFile: "/run/alice"},
		},
		JWT: []Issuer{{
			Key: "auth.jwt[0]", Issuer: "https://login.example.com/", Audience: []string{"https://mcp.example.com/mcp"},
			JWKSURL:    "https://keys.example.com/?app=1",
			Algorithms: []string{"RS256", "ES256", "EdDSA"}, Principal: "sub", Skew: 30 * time.Second,
		}, {
			Key: "auth.jwt[1]", Issuer: "http://localhost:8080/realms/a", Audience: []string{"one", "two"},
			JWKSFile:   filepath.Join(dir, "keys.json"),
			Algorithms: []string{"PS512", "EdDSA"}, Principal: "email", Scopes: []string{"mcp"}, Skew: 5 * time.Minute,
		}},
	}
}

func wantPolicies() []Policy {
	const issuer = "https://login.example.com/"
	all := []Policy{
		{
			Who: Who{Token: "ci"}, Tools: Tools{Allow: []string{"files__*"}, Deny: []string{"*_all"}},
			Limits: PolicyLimits{Rate: 10, InFlight: 16, Sessions: 8},
		},
		{
			Who:    Who{Issuer: issuer, Claims: map[string]string{"groups": "admin", "level": "3"}},
			Scopes: map[string][]string{"files__write*": {"files.write"}, "file:///*": {"a", "b"}},
		},
		{Who: Who{Issuer: issuer, Principal: "bob"}, Limits: PolicyLimits{Rate: 1000. / 3600}},
		{Who: Who{Token: "default"}, Limits: PolicyLimits{Rate: 10}},
		{Who: Who{User: "1000"}},
		{Who: Who{Certificate: "laptop", Issuer: "Example CA"}},
		{Who: Who{Operator: true}},
		{Who: Who{Anonymous: true}},
		{Who: Who{Any: true}, Prompts: Tools{Deny: []string{"*"}}, Resources: Tools{Deny: []string{"file:///etc/*"}}},
	}
	for i := range all {
		all[i].Key = fmt.Sprintf("policies[%d]", i)
	}
	return all
}

func TestFormatsMeanTheSame(t *testing.T) {
	t.Setenv("CONFIG_TEST_NAME", "value")
	dir, err := filepath.Abs("testdata/load")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files(t, "load") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			c, warnings, err := Load(Options{File: file})
			if err != nil || len(warnings) != 2 || strings.Count(strings.Join(warnings, ""), "matches no client") != 2 { // with a token
				t.Fatal(warnings, err)
			}
			want := wantFull(dir)
			want.File, want.Given, want.Read = file, map[string]string{}, []string{filepath.Join(dir, filepath.Base(file))}
			if !reflect.DeepEqual(c, want) {
				t.Errorf("got  %+v\nwant %+v", c, want)
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	c := load(t, "upstreams: {a: {command: x, env: , args: , tools: }}\nlimits:\n")
	want := &Config{
		File:        c.File,
		Given:       map[string]string{},
		Frontend:    Frontend{Listen: []string{"127.0.0.1:8080"}},
		SessionIdle: 30 * time.Minute,
		SessionGone: 5 * time.Minute,
		ListTimeout: 10 * time.Second, Drain: 5 * time.Second, ShutdownGrace: 8 * time.Second,
		Prefix: "auto", TokenStore: "file", CatalogAge: 24 * time.Hour, Cluster: Cluster{Listen: ":7946"},
		Limits: Limits{Message: 16 << 20, Depth: 1000, InFlight: 1024, Sessions: 256},
		Upstreams: []Upstream{{
			Name: "a", Key: "upstreams.a", Process: Process{Command: "x", Env: map[string]string{}},
			StartTimeout: 30 * time.Second, WriteTimeout: time.Minute, StopGrace: 2 * time.Second,
		}},
	}
	if want.Read = []string{c.File}; !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
}

func TestLayers(t *testing.T) {
	file := write(t, "mcp-proxy.yaml", `
listen: ["127.0.0.1:1"]
drain: 1s
shutdownGrace: 2s
tokenFile: token
sessionGone: 7s
upstreams: {a: {command: x}}
`)
	t.Setenv("MCP_PROXY_LISTEN", "127.0.0.1:2, unix:///a,[::1]:3")
	t.Setenv("MCP_PROXY_SHUTDOWN_GRACE", "9s")
	t.Setenv("MCP_PROXY_TOKEN_FILE", "other")
	t.Setenv("MCP_PROXY_SESSION_GONE", "10s")
	t.Setenv("MCP_PROXY_ALLOWED_HOSTS", "a.example,*")
	t.Setenv("MCP_PROXY_INSECURE", "true")
	t.Setenv("MCP_PROXY_SESSION_IDLE", "") // counts as unset
	t.Setenv("MCP_PROXY_TOKEN_STORE", "keyring")
	t.Setenv("MCP_PROXY_PUBLIC_URL", "http://[::1]:3/a//")
	t.Setenv("MCP_PROXY_SHUTDOWNGRACE", "1s")

	c, warnings, err := Load(Options{File: file})
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		File: file,
		Given: map[string]string{
			"listen": "MCP_PROXY_LISTEN", "shutdownGrace": "MCP_PROXY_SHUTDOWN_GRACE", "tokenFile": "MCP_PROXY_TOKEN_FILE",
			"sessionGone": "MCP_PROXY_SESSION_GONE", "allowedHosts": "MCP_PROXY_ALLOWED_HOSTS", "insecure": "MCP_PROXY_INSECURE",
			"tokenStore": "MCP_PROXY_TOKEN_STORE", "publicURL": "MCP_PROXY_PUBLIC_URL",
		},
		Frontend: Frontend{
			Listen:       []string{"127.0.0.1:2", "unix:///a", "[::1]:3"},
			TokenFile:    "other",
			Insecure:     true,
			AllowedHosts: []string{"a.example", "*"},
			PublicURL:    "http://[::1]:3/a",
		},
		SessionIdle: 30 * time.Minute,
		SessionGone: 10 * time.Second,
		ListTimeout: 10 * time.Second, Drain: time.Second, ShutdownGrace: 9 * time.Second,
		Prefix: "auto", TokenStore: "keyring", CatalogAge: 24 * time.Hour, Cluster: Cluster{Listen: ":7946"},
		Limits: c.Limits, Upstreams: c.Upstreams,
	}
	if want.Read = []string{c.File}; !reflect.DeepEqual(*c, want) {
		t.Errorf("got  %+v\nwant %+v", *c, want)
	}
	if len(warnings) != 1 || warnings[0] != "MCP_PROXY_SHUTDOWNGRACE: is not a setting and is ignored" {
		t.Errorf("warnings %q", warnings)
	}

	c, _, err = Load(Options{File: file, Listen: []string{"127.0.0.1:4"}})
	if err != nil || !reflect.DeepEqual(c.Listen, []string{"127.0.0.1:4"}) {
		t.Errorf("the flag: %+v, %v", c, err)
	}
}

func TestLayersMistakes(t *testing.T) {
	// A mistake in the file is reported although the environment overrides it.
	file := write(t, "mcp-proxy.yaml", "drain: soon\nupstreams: {a: {command: x}}\n")
	t.Setenv("MCP_PROXY_DRAIN", "1s")
	t.Setenv("MCP_PROXY_PREFIX", "maybe")
	t.Setenv("MCP_PROXY_LISTEN", "localhost")
	t.Setenv("MCP_PROXY_SESSION_IDLE", "long")
	t.Setenv("MCP_PROXY_INSECURE", "perhaps")
	got := problems(t, Options{File: file, Listen: []string{"nowhere"}})
	want := `mcp-proxy.yaml: drain: must be a duration such as 500ms, 30s or 5m, not "soon"
--listen: must be HOST:PORT (a port is at most 65535) or unix:///path, not "nowhere"
MCP_PROXY_INSECURE: must be true or false, not "perhaps"
MCP_PROXY_SESSION_IDLE: must be a duration above zero such as 500ms, 30s or 5m, not "long"
MCP_PROXY_PREFIX: must be auto, always or never, not "maybe"
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestBeyondLoopback(t *testing.T) {
	const open = " is reachable from other machines: require authentication "
	file := write(t, "mcp-proxy.yaml", "upstreams: {a: {command: x}}\n")
	if got := problems(t, Options{File: file, Listen: []string{"localhost:1", "0.0.0.0:2"}}); got != `--listen: "0.0.0.0:2"`+open+"(--token-file, --tls-client-ca, or auth in a configuration), or give --insecure\n" {
		t.Errorf("the flag: %s", got)
	}
	t.Setenv("MCP_PROXY_LISTEN", ":3")
	if got := problems(t, Options{File: file}); got != `MCP_PROXY_LISTEN: ":3"`+open+"(MCP_PROXY_TOKEN_FILE, or auth or tls.clientCA in a configuration), or set MCP_PROXY_INSECURE=true\n" {
		t.Errorf("the environment: %s", got)
	}
	t.Setenv("MCP_PROXY_TOKEN_FILE", "/run/token")
	if _, _, err := Load(Options{File: file}); err != nil {
		t.Errorf("with a token: %v", err)
	}
	t.Setenv("MCP_PROXY_TOKEN_FILE", "")
	t.Setenv("MCP_PROXY_INSECURE", "1")
	if _, _, err := Load(Options{File: file}); err != nil {
		t.Errorf("insecure: %v", err)
	}
}

func TestSearch(t *testing.T) {
	work, home := t.TempDir(), t.TempDir()
	t.Chdir(work)
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "relative is ignored")
	put := func(path, name string) string {
		t.Helper()
		mkfile(t, path, map[bool]string{
			true:  "[upstreams." + name + "]\ncommand = \"x\"\n",
			false: `{"upstreams": {"` + name + `": {"command": "x"}}}`,
		}[strings.HasSuffix(path, ".toml")])
		return path
	}
	expect := func(file, name string) {
		t.Helper()
		c, _, err := Load(Options{})
		if err != nil {
			t.Fatal(err)
		}
		if c.File != file || c.Upstreams[0].Name != name {
			t.Errorf("found %s with %s; want %s with %s", c.File, c.Upstreams[0].Name, file, name)
		}
	}

	if got := problems(t, Options{}); !strings.HasPrefix(got, "no configuration: mcp-proxy.yaml") {
		t.Errorf("nothing to find: %s", got)
	}
	expect(put(filepath.Join(home, ".config/mcp-proxy/mcp-proxy.toml"), "fallback"), "fallback")
	xdg := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", xdg)
	expect(put(filepath.Join(xdg, "mcp-proxy/mcp-proxy.json"), "xdg"), "xdg")
	mkfile(t, filepath.Join(work, "mcp-proxy"), "a binary, not a configuration")
	expect(put("mcp-proxy.toml", "toml"), "toml")
	expect(put("mcp-proxy.json", "json"), "json")
	expect(put("mcp-proxy.yml", "yml"), "yml")
	expect(put("mcp-proxy.yaml", "yaml"), "yaml")
}

func TestFileCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	for name, want := range map[string]string{
		"absent.yaml": "cannot be read: no such file or directory",
		"folder.yaml": "cannot be read: is a directory",
		"config.ini":  "has an unknown format: its name must end in .yaml, .yml, .json, .jsonc or .toml",
		"large.yaml":  "is larger than 1MiB",
	} {
		mkfile(t, filepath.Join(dir, "folder.yaml/inside"), "")
		mkfile(t, filepath.Join(dir, "large.yaml"), strings.Repeat("#\n", tree.MaxBytes/2+1))
		if got := problems(t, Options{File: filepath.Join(dir, name)}); got != name+": "+want+"\n" {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// A misspelt command or url of another program's entry is a mistake, told once for each entry, and beside the other
// one only a warning.
func TestSlipInAnotherProgramsEntry(t *testing.T) {
	servers := `{"a": {"comand": "x"}, "b": {"comand": "x"}, "c": {"uri": "http://localhost"}, "d": {"command": "x", "uri": "y"}}`
	_, warnings, err := Load(Options{File: write(t, "mcp.json", `{"mcpServers": `+servers+`}`)})
	told := strings.Join(warnings, "\n") + fmt.Sprintf("\n%v", err)
	for _, key := range []string{"a.comand", "b.comand", "c.uri", "d.uri"} {
		if n := strings.Count(told, "mcpServers."+key+": unknown key"); n != 1 {
			t.Errorf("%s is told %d times in\n%s", key, n, told)
		}
	}
	if problems, _ := errors.AsType[Problems](err); len(warnings) != 1 || len(problems) != 3 {
		t.Errorf("%d warnings and %d mistakes in\n%s", len(warnings), len(problems), told)
	}
}
