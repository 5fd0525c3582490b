package config

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// write creates a file in a new directory and returns its path.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// load loads a YAML text that must be valid.
func load(t *testing.T, text string) *Config {
	t.Helper()
	c, _, err := Load(Options{File: write(t, "mcp-proxy.yaml", text)})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// problems loads a text that must be invalid, and returns the lines of the error
// without the file's directory.
func problems(t *testing.T, o Options) string {
	t.Helper()
	c, _, err := Load(o)
	ps, ok := err.(Problems)
	if !ok || len(ps) == 0 || c == nil || !reflect.DeepEqual(c, &Config{File: c.File, Read: c.Read}) {
		t.Fatalf("Load = %v, %T %v; want Problems alone", c, err, err)
	}
	return strings.ReplaceAll(err.Error(), filepath.Dir(o.File)+string(filepath.Separator), "") + "\n"
}

// golden compares with a file of testdata, or writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\n--- got\n%s--- want\n%s", name, got, want)
	}
}

// files returns the files in a folder of testdata, without golden ones.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	for _, ext := range []string{"yaml", "json", "toml"} {
		found, err := filepath.Glob(filepath.Join("testdata", dir, "*."+ext))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	if len(names) == 0 {
		t.Fatalf("no files in testdata/%s", dir)
	}
	return names
}

func TestMistakes(t *testing.T) {
	t.Setenv("CONFIG_TEST_SECRET", "hunter2")
	for _, file := range files(t, "mistakes") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			got := problems(t, Options{File: file})
			if strings.Contains(got, "hunter2") {
				t.Error("a line shows the value of a variable")
			}
			golden(t, file+".golden", got)
		})
	}
}

func TestServers(t *testing.T) {
	for _, file := range files(t, "servers") {
		t.Run(filepath.Base(file), func(t *testing.T) { golden(t, file+".golden", foundIn(t, file)) })
	}
}

// TestFound: files of other programs work unchanged.
func TestFound(t *testing.T) {
	for name, value := range map[string]string{
		"FOUND_MODE": "a-mode", "FOUND_TOKEN": "a-token", "FOUND_DATABASE": "postgres://db", "INPUT_PERPLEXITY_KEY": "a-key",
	} {
		t.Setenv(name, value)
	}
	for _, file := range files(t, "found") {
		t.Run(filepath.Base(file), func(t *testing.T) { golden(t, file+".golden", foundIn(t, file)) })
	}
}

// TestEditorsFolder: paths in a file in an editor's own folder count from the folder above.
func TestEditorsFolder(t *testing.T) {
	dir := t.TempDir()
	for name, cwd := range map[string]string{".vscode/mcp.json": dir, ".cursor/mcp.json": "", ".kiro/settings/mcp.json": ""} {
		file := filepath.Join(dir, name)
		servers := "mcpServers"
		if cwd != "" {
			servers = "servers"
		}
		mkfile(t, file, `{"`+servers+`": {"a": {"command": "./x", "args": ["${workspaceFolder}/y"]}}}`)
		c, _, err := Load(Options{File: file})
		if err != nil {
			t.Fatal(err)
		}
		if u := c.Upstreams[0]; u.Command != filepath.Join(dir, "x") || u.Args[0] != dir+"/y" || u.Cwd != cwd {
			t.Errorf("%s: %+v", name, u)
		}
	}
}

// foundIn returns what is read from a file, as text.
func foundIn(t *testing.T, file string) string {
	c, warnings, err := Load(Options{File: file})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, u := range c.Upstreams {
		fmt.Fprintf(&got, "%s <- %s type=%q command=%q url=%q env=%v headers=%v tools=%v\n",
			u.Name, u.Key, u.Type, filepath.Base(u.Command), u.URL, u.Env, u.Headers, u.Tools)
		if len(u.Args)+len(u.InheritEnv) > 0 || u.StartTimeout != 30*time.Second || u.RequestTimeout > 0 {
			fmt.Fprintf(&got, "  args=%q inheritEnv=%q start=%s request=%s required=%t\n", u.Args, u.InheritEnv, u.StartTimeout, u.RequestTimeout, u.Required)
		}
		if a := u.Auth; a.OAuth != nil {
			fmt.Fprintf(&got, "  oauth=%q\n", *a.OAuth)
		} else if a.ClientCredentials != nil {
			fmt.Fprintf(&got, "  clientCredentials: id=%q key=%q\n", a.ClientCredentials.ClientID, filepath.Base(a.ClientCredentials.PrivateKeyFile))
		}
	}
	for _, w := range warnings {
		fmt.Fprintln(&got, "warning:", w)
	}
	if strings.Contains(got.String(), "hunter2") {
		t.Error("a warning shows a secret")
	}
	return strings.ReplaceAll(got.String(), dir, "DIR")
}

func TestChanged(t *testing.T) {
	const upstreams = "upstreams: {a: {command: x}}\n"
	before := load(t, upstreams)
	if keys := before.Changed(load(t, "upstreams: {b: {command: y}}\nlinks: {c: {dial: \"unix:///a\"}}\ntokenFile: x\nauth: {tokens: [{name: a, tokenFile: y}]}\npolicies: [{who: any}]\n")); keys != nil {
		t.Errorf("what a reload takes over: %q", keys)
	}
	now := load(t, upstreams+"tls: {cert: a, key: b}\npublicURL: https://a\nlimits: {depth: 9}\nlogs: {calls: true}\n")
	if keys := before.Changed(now); strings.Join(keys, " ") != "tls publicURL limits logs" {
		t.Errorf("changed: %q", keys)
	}
}

// mkfile writes a file and the folders above it.
func mkfile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
