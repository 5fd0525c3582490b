// Package examples_test runs the examples.
package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/mcp-proxy/mcp-proxy/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// configs are all files that mcp-proxy reads.
func configs(t *testing.T) []string {
	files, err := filepath.Glob("*.[jy]*") // JSON and YAML
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []string{"*/*.yaml", "*/*/*.yaml"} {
		more, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, more...)
	}
	return slices.DeleteFunc(files, func(name string) bool {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Base(name) == "compose.yaml" || manifest.Match(text)
	})
}

// manifest matches what is for Kubernetes.
var manifest = regexp.MustCompile("(?m)^apiVersion:")

func TestConfigs(t *testing.T) {
	files := configs(t)
	if len(files) < 14 {
		t.Fatalf("examples: %v", files)
	}
	for _, file := range files {
		_, warnings, err := config.Load(config.Options{File: file})
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: %v, %q", file, err, warnings)
		}
	}
}

var blocks = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")

// TestDocs loads the configurations of the README and of the pages in docs, each with what
// it leaves to others.
func TestDocs(t *testing.T) {
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range append(pages, "../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		var auth string
		for _, b := range blocks.FindAllSubmatch(text, -1) {
			block := string(b[1])
			if strings.Contains(block, "volumes:") || strings.HasPrefix(block, "resources:") {
				continue // for Kubernetes
			}
			if strings.Contains(block, "auth:\n") {
				auth = block
			}
			if strings.Contains(block, "policies:") && !strings.Contains(block, "auth:") {
				block = auth + block
			}
			if !strings.Contains(block, "upstreams:") && !strings.Contains(block, "links:") {
				block += "upstreams: {files: {command: x}}\n"
			}
			found++
			loads(t, page, block)
		}
	}
	if found < 10 {
		t.Errorf("%d configurations", found)
	}
}

// loads loads a text that must be right.
func loads(t *testing.T, page, text string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mcp-proxy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, warnings, err := config.Load(config.Options{File: file}); err != nil || len(warnings) > 0 {
		t.Errorf("%s: %v, %q of\n%s", page, err, warnings, text)
	}
}

// TestQuickstart talks to both servers of the quickstart as a host would that
// starts the proxy itself.
func TestQuickstart(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles three programs")
	}
	client := quickstart(t)
	waitForTools(t, client, "clock__now", "notes__add")

	if got := call(t, client, "clock__now", map[string]any{"zone": "Europe/Vienna"}); !strings.Contains(got, "weekday") {
		t.Errorf("clock__now: %s", got)
	}
	call(t, client, "notes__add", map[string]any{"title": "First note", "text": "it works"})
	if got := call(t, client, "notes__find", map[string]any{"text": "WORKS"}); got != `{"titles":["First note"]}` {
		t.Errorf("notes__find: %s", got)
	}
	res, err := client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "note:///First%20note"})
	if err != nil || res.Contents[0].Text != "it works" {
		t.Errorf("read the note: %v, %v", res, err)
	}
	prompt, err := client.GetPrompt(t.Context(), &mcp.GetPromptParams{
		Name: "notes__summarize", Arguments: map[string]string{"title": "First note"},
	})
	if err != nil || len(prompt.Messages) != 2 {
		t.Errorf("get the prompt: %v, %v", prompt, err)
	}
}

// quickstart returns a client of the proxy with quickstart.yaml, over stdio.
func quickstart(t *testing.T) *mcp.ClientSession {
	dir := t.TempDir()
	binary := filepath.Join(dir, "mcp-proxy")
	for _, args := range [][]string{
		{"-o", binary, "../cmd/mcp-proxy"},
		// As quickstart.yaml does: with an empty cache they would start later than the client waits for a list.
		{"-gcflags=all=-l", "-o", dir, "./servers/clock", "./servers/notes"},
	} {
		if out, err := exec.Command("go", append([]string{"build"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	}
	cmd := exec.Command(binary, "stdio", "--config", "quickstart.yaml")
	cmd.Env = append(os.Environ(), "NOTES_DIR="+t.TempDir())
	cmd.Stderr = t.Output()
	client, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).
		Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return client
}

// waitForTools waits until all the tools are listed: a server that is still
// being compiled comes later.
func waitForTools(t *testing.T, client *mcp.ClientSession, want ...string) {
	var names []string
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		list, err := client.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		names = names[:0]
		for _, tool := range list.Tools {
			names = append(names, tool.Name)
		}
		if !slices.ContainsFunc(want, func(name string) bool { return !slices.Contains(names, name) }) {
			return
		}
	}
	t.Fatalf("no %v among %v", want, names)
}

// call returns the text of a tool's result.
func call(t *testing.T, client *mcp.ClientSession, name string, args any) string {
	t.Helper()
	res, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	text := res.Content[0].(*mcp.TextContent).Text
	if res.IsError {
		t.Fatalf("%s: %s", name, text)
	}
	return text
}
