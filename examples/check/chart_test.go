package check_test

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"sigs.k8s.io/yaml"
)

var chartDir = filepath.Join(root, "packaging/chart")

// template is "helm template", and what helm says after an installation.
func template(values map[string]any) (manifests, notes string, err error) {
	chart, err := loader.Load(chartDir)
	if err != nil {
		return "", "", err
	}
	release := chartutil.ReleaseOptions{Name: "tools", Namespace: "team", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValues(chart, values, release, chartutil.DefaultCapabilities)
	if err != nil {
		return "", "", err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return "", "", err
	}
	var documents []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, ".yaml") && strings.TrimSpace(files[name]) != "" {
			documents = append(documents, files[name])
		}
	}
	return strings.Join(documents, "\n---\n"), files["mcp-proxy/templates/NOTES.txt"], nil
}

// values are those of a file.
func values(t *testing.T, text string) map[string]any {
	t.Helper()
	all := make(map[string]any)
	if err := yaml.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

const remote = "config: {upstreams: {docs: {url: 'https://docs.example.com/mcp'}}}\n"

// TestChart renders and lints the chart with values that people may have.
func TestChart(t *testing.T) {
	for name, tt := range map[string]struct{ values, config, manifest string }{
		"a token":    {remote + "token: {secret: mcp}", "tokenFile: /run/secrets/mcp-proxy/token", "secretName: mcp"},
		"servers":    {"image: {repository: mcp-proxy-tools}\nconfig: {upstreams: {clock: {command: /usr/local/bin/clock}}}\ntoken: {secret: mcp}", "command: /usr/local/bin/clock", "path: token"},
		"everybody":  {"config: {insecure: true, upstreams: {docs: {url: 'https://docs.example.com/mcp'}}}", "insecure: true", "tools-mcp-proxy"},
		"logins":     {"config: {publicURL: 'https://mcp.example.com', auth: {jwt: [{issuer: 'https://login.example.com', audience: mcp}]}, links: {home: {accept: true, tokenFile: /run/secrets/home/token}}}\nsecrets: [home]", "issuer: https://login.example.com", "mountPath: /run/secrets/home,"},
		"our own":    {"config: {limits: {sessions: 1000000, message: 64MiB}, allowedHosts: [mcp.example.com], upstreams: {m: {command: npx, args: ['-y', 'x'], env: {KEY: '${KEY}'}}}}\ntoken: {secret: mcp, key: token}\nenv: [{name: KEY, valueFrom: {secretKeyRef: {name: a, key: b}}}]", "- mcp.example.com\n", "sessions: 1000000"},
		"replicas":   {"config: {cluster: {required: true}, upstreams: {docs: {url: 'https://docs.example.com/mcp'}}}\ntoken: {secret: mcp}\nreplicas: 3\ncluster: {secret: keys, key: k}", "required: true", "secretName: keys"},
		"everything": {remote + "token: {secret: mcp}\nreplicas: 3\nimage: {repository: r/mcp-proxy, tag: '1'}\nimagePullSecrets: [{name: pull}]\npodAnnotations: {a: b}\nnodeSelector: {a: b}\ntolerations: [{key: a, operator: Exists}]\naffinity: {nodeAffinity: {}}\nservice: {type: LoadBalancer, port: 80}", "tools-mcp-proxy.team.svc", "sessionAffinity: ClientIP"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KEY", "x")
			text, notes, err := template(values(t, tt.values))
			if err != nil {
				t.Fatal(err)
			}
			a := parse(t, text)
			a.check(t)
			checkService(t, a)
			checkDrain(t, a, "mcp-proxy.yaml", 1)
			checkReplicas(t, a, "mcp-proxy.yaml", name == "replicas")
			config := a.config.Data["mcp-proxy.yaml"]
			checkConfig(t, "mcp-proxy.yaml", config)
			if name == "servers" {
				a.note(t, "chart")
			}
			if !strings.Contains(notes, "http://tools-mcp-proxy.team:") {
				t.Errorf("the notes do not say where: %s", notes)
			}
			if !strings.Contains(config, "- tools-mcp-proxy.team.svc\n") {
				t.Errorf("the Service has no name that is allowed:\n%s", config)
			}
			if !strings.Contains(config, tt.config) || !strings.Contains(text, tt.manifest) {
				t.Errorf("no %q, or no %q in\n%s", tt.config, tt.manifest, text)
			}
			linted := lint.All(chartDir, values(t, tt.values), "team", true)
			for _, m := range linted.Messages {
				if m.Severity > support.InfoSev {
					t.Errorf("helm lint: %s", m)
				}
			}
		})
	}
}

// TestChartMistakes: what cannot work is said before anything is installed.
func TestChartMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "config: name at least one server",
		remote:                                   "token.secret: clients have to prove",
		remote + "replicas: many":                "replicas",
		remote + "tokens: {secret: mcp}":         "tokens",
		remote + "token: {secret: mcp, keys: x}": "keys",
		remote + "token: {secret: x}\nsecrets: [mcp-proxy]":  "secrets",
		remote + "token: {secret: x}\ncluster: {keyFile: x}": "keyFile",
	} {
		if _, _, err := template(values(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
