// Package check_test holds the manifests of the examples, and the chart, against the programs
// that read them: compose-go is what docker compose loads its files with, kustomize and helm
// render what kubectl and helm would apply, k8s.io/api is what that is decoded into, and
// the schemas are those of Kubernetes. The configurations in them are checked by mcp-proxy.
// It is a module of its own, so that nobody else needs all that.
package check_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is that of the repository.
const root = "../.."

// mcpProxy is the binary: MCP_PROXY, or one that is built here.
var mcpProxy = os.Getenv("MCP_PROXY")

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "check")
	if err == nil && mcpProxy == "" {
		mcpProxy = filepath.Join(dir, "mcp-proxy")
		build := exec.Command("go", "build", "-o", mcpProxy, "./cmd/mcp-proxy")
		build.Dir, build.Stderr = root, os.Stderr
		err = build.Run()
	}
	if err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// elsewhere are mistakes that a configuration has because it is not where it is used: commands
// and files are missing here.
var elsewhere = regexp.MustCompile(`: ("[^"]*" (does not exist|is not on the server.s PATH.*)|.*: no such file or directory)$`)

// checkConfig lets mcp-proxy check a configuration.
func checkConfig(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	write(t, file, text)
	out, err := exec.Command(mcpProxy, "check", file).CombinedOutput()
	if err == nil {
		return
	}
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); !elsewhere.MatchString(line) {
			t.Errorf("mcp-proxy check: %s", line)
		}
	}
}

// runtimeDir is the one that the images have.
func runtimeDir(t *testing.T) string {
	_, rest, _ := strings.Cut(read(t, "Dockerfile"), "ENV XDG_RUNTIME_DIR=")
	dir, _, _ := strings.Cut(rest, "\n")
	if !strings.HasPrefix(dir, "/") {
		t.Fatal("the Dockerfile sets no XDG_RUNTIME_DIR")
	}
	return dir
}

// wrong proves that a check finds a mistake: the text with old replaced is
// refused.
func wrong(t *testing.T, text, old, mistake string, check func(string) error) {
	t.Helper()
	broken := strings.Replace(text, old, mistake, 1)
	if broken == text || check(broken) == nil {
		t.Errorf("nobody minds %q", mistake)
	}
}
